"""Checks that the parts are compatible, before weights are loaded."""

from collections.abc import Sequence

from specbench.config.model import ModelConfig, name_of
from specbench.config.schema import RunConfig
from specbench.engine.session import Prompt
from specbench.engine.vocabulary import Vocabulary
from specbench.errors import UserError


def require_a_pair(config: RunConfig, draft: ModelConfig, key: str, target: Vocabulary, own: Vocabulary) -> None:
    """Check that a draft model is of the target's kind (decoder-only or encoder-decoder).

    Args:
        config: the run.
        draft: the draft model.
        key: the config's name of it.
        target: the target's vocabulary.
        own: the draft's.

    Raises:
        UserError: they are of different kinds.
    """
    if target.is_encoder_decoder != own.is_encoder_decoder:
        kinds = {True: "encoder-decoder", False: "decoder-only"}
        raise UserError(
            f"{key}={name_of(draft)}: is {kinds[own.is_encoder_decoder]} and target={name_of(config.target)} "
            f"is {kinds[target.is_encoder_decoder]}: use draft=lookup or "
            "draft=early-exit, which require nothing more, or a draft of the target's kind"
        )


def require_range(config: RunConfig, vocabulary: Vocabulary, name: str) -> None:
    """Check that the dtype holds the model's activations: T5's leave the range of fp16 (transformers#9295).

    Raises:
        UserError: a T5 in float16.
    """
    if config.dtype == "float16" and vocabulary.family in ("t5", "mt5", "umt5"):
        raise UserError(f"dtype=float16: {name} is a T5, which overflows in fp16; use bfloat16 or float32")


def require_room(config: RunConfig, longest: int | None, prompts: Sequence[Prompt]) -> None:
    """Check that no completion runs past the `longest` learned positions of the model (None: no limit).

    Raises:
        UserError: the longest prompt and `max_new_tokens` exceed them.
    """
    needed = max(len(prompt.prefix) for prompt in prompts) + config.max_new_tokens
    if longest is not None and needed > longest:
        raise UserError(
            f"max_new_tokens={config.max_new_tokens}: with the longest prompt this makes {needed} tokens, and the "
            f"model has positions for {longest}; lower max_new_tokens or task.max_source_tokens"
        )
