"""Sessions over `transformers` models run eagerly with a growing cache: one for each of the two families.

The encoder runs once a prompt. Rolling back cuts the decoder's self-attention cache only; the cross-attention cache
belongs to the source and stays.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from specbench.models.base import Prompt, Session


class EagerModel:
    """A `transformers` model with a language head, ready to start sessions."""

    engine = "eager"
    warmup_s = 0.0  # seconds spent on making the engine ready
    fell_back: str | None = None  # why 'auto' came to this

    def __init__(self, network: Any, vocabulary_size: int, eos_ids: frozenset[int]) -> None:
        self.network = network.eval()
        self.vocabulary_size = vocabulary_size
        self.eos_ids = eos_ids
        self.device: torch.device = network.device
        self.is_encoder_decoder: bool = network.config.is_encoder_decoder
        # Learned positions end here. Relative ones (T5) do not end; rotary ones are trusted to their stated length.
        self.longest: int | None = getattr(network.config, "max_position_embeddings", None)
        self.operations = 2.0 * _weights_per_step(network)

    def start(self, prompt: Prompt) -> Session:
        if self.is_encoder_decoder:
            return EncoderDecoderSession(self, prompt.source)
        return DecoderOnlySession(self, prompt.prefix[:-1])

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([tokens], device=self.device)


def _weights_per_step(network: Any) -> int:
    """Weights that one decoding step multiplies with: all but the encoder's and those that are only looked up."""
    head = network.get_output_embeddings().weight
    left_out = {id(network.get_input_embeddings().weight)}
    if network.config.is_encoder_decoder:
        left_out |= {id(parameter) for parameter in network.get_encoder().parameters()}
    counted = {id(p): p.numel() for p in network.parameters() if id(p) not in left_out}
    return sum((counted | {id(head): head.numel()}).values())


class _CachedSession:
    """What both families share: a self-attention cache that is as long as the tokens read."""

    def __init__(self, model: EagerModel, cache: Any) -> None:
        self.model = model
        self.length = 0
        self._cache = cache

    def rollback(self, length: int) -> None:
        surplus = self.length - length
        if surplus > 0:
            # A negative count removes that many tokens in every supported release; the meaning of a positive
            # one changed within transformers 5.
            self._cache.crop(-surplus)
            self.length = length

    def _forward(self, tokens: Sequence[int], **inputs: Any) -> Tensor:
        with torch.inference_mode():
            output = self.model.network(past_key_values=self._cache, use_cache=True, **inputs)
        self.length += len(tokens)
        logits: Tensor = output.logits[0]
        return logits


class EncoderDecoderSession(_CachedSession):
    """The encoder's output and the decoder's two caches."""

    def __init__(self, model: EagerModel, source: Sequence[int]) -> None:
        # Not DynamicCache(config=...): it counts encoder layers and breaks on a deeper decoder.
        super().__init__(model, EncoderDecoderCache(DynamicCache(), DynamicCache()))
        with torch.inference_mode():
            self._encoded = model.network.get_encoder()(input_ids=model.ids(source))

    def extend(self, tokens: Sequence[int]) -> Tensor:
        return self._forward(tokens, decoder_input_ids=self.model.ids(tokens), encoder_outputs=self._encoded)


class DecoderOnlySession(_CachedSession):
    """The prompt is read at the start, so that decoding begins with one token, as in the other family."""

    def __init__(self, model: EagerModel, read_first: Sequence[int]) -> None:
        # Without the config every layer keeps all it read: layers that attend to a window only would drop what a
        # rollback needs. Their masks hold them to the window all the same.
        super().__init__(model, DynamicCache())
        if read_first:
            # The head's logits of the prompt are of no use, and large.
            self._forward(read_first, input_ids=model.ids(read_first), logits_to_keep=1)

    def extend(self, tokens: Sequence[int]) -> Tensor:
        return self._forward(tokens, input_ids=self.model.ids(tokens))
