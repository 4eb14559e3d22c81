"""What does not go together, refused in one line before any weight is loaded."""

from collections.abc import Sequence

from specbench.config import ModelConfig, RunConfig
from specbench.config.model import name_of
from specbench.errors import UserError
from specbench.models import Prompt, Vocabulary


def require_a_pair(config: RunConfig, draft: ModelConfig, key: str, target: Vocabulary, own: Vocabulary) -> None:
    """`draft`, which the config calls `key` and whose vocabulary is `own`, must be of the target's kind."""
    if target.is_encoder_decoder != own.is_encoder_decoder:
        kinds = {True: "encoder-decoder", False: "decoder-only"}
        raise UserError(
            f"{key}={name_of(draft)}: is {kinds[own.is_encoder_decoder]} and target={name_of(config.target)} "
            f"is {kinds[target.is_encoder_decoder]}: pick a draft of the target's kind, or use unigram, bigram, random"
        )


def require_range(config: RunConfig, vocabulary: Vocabulary, name: str) -> None:
    """T5 was trained in bf16, and its activations leave the range of fp16 (transformers#9295)."""
    if config.dtype == "float16" and vocabulary.family in ("t5", "mt5", "umt5"):
        raise UserError(f"dtype=float16: {name} is a T5, which overflows in fp16; use bfloat16 or float32")


def require_room(config: RunConfig, longest: int | None, prompts: Sequence[Prompt]) -> None:
    """Learned positions end somewhere; a text must not run past them."""
    needed = max(len(prompt.prefix) for prompt in prompts) + config.max_new_tokens
    if longest is not None and needed > longest:
        raise UserError(
            f"max_new_tokens={config.max_new_tokens}: with the longest prompt this makes {needed} tokens, and the "
            f"model has positions for {longest}; lower max_new_tokens or task.max_source_tokens"
        )
