"""Models of a true shape and random weights: step times, c and v need no checkpoint.

Their completions are meaningless.
"""

import zlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
)

from specbench.engine.weights.pretrained import (
    DamagedCheckpoint,
    network_of_shape,
    require_usable,
)
from specbench.errors import UserError, first_line

START, END, FIRST_WORD = 0, 1, 3


def config_of(architecture: Mapping[str, Any], key: str) -> Any:
    """A `transformers` config with these values. Raises UserError if `transformers` rejects the family or a value."""
    values = dict(architecture)
    family = values.pop("model_type", None)
    try:
        config = AutoConfig.for_model(family, **values)
    except (ValueError, TypeError) as error:
        raise UserError(f"{key}.architecture: {first_line(error)}") from error
    for name, value in values.items():  # T5's constructor forces tied embeddings
        setattr(config, name, value)
    try:
        require_usable(config)
    except DamagedCheckpoint as error:
        raise UserError(f"{key}.architecture: {error}") from error
    return config


def random_network(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A network of this shape, made where it will run: 11 billion weights need no copy elsewhere."""
    torch.manual_seed(0)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with device:
        return network_of_shape(auto, config, dtype=dtype)


class WordNumbers:
    """A stand-in for a tokenizer: a word is a token, numbered by its digits. Its methods have a tokenizer's names."""

    eos_token_id = END
    bos_token_id = START

    def __init__(self, size: int) -> None:
        self.size = size

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self.size)}

    def __call__(self, text: str, add_special_tokens: bool = True, max_length: int | None = None, **_: Any) -> Any:
        ids = [FIRST_WORD + zlib.crc32(word.encode()) % (self.size - FIRST_WORD) for word in text.split()]
        ids = ids[:max_length]
        return SimpleNamespace(input_ids=ids or [FIRST_WORD])

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))
