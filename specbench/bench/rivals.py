"""transformers' own ways of decoding, on the very networks that we run: greedy search and assisted generation."""

from typing import Any

import torch

from specbench.models import Prompt


def generate(network: Any, prompt: Prompt, max_new_tokens: int, **keywords: Any) -> list[int]:
    """What `network.generate` writes behind `prompt`, greedily, one text at a time."""
    encoder_decoder = network.config.is_encoder_decoder
    ids = torch.tensor([prompt.source if encoder_decoder else prompt.prefix], device=network.device)
    ends = network.generation_config.eos_token_id
    pad = network.generation_config.pad_token_id
    if pad is None:
        pad = ends if isinstance(ends, int) or ends is None else ends[0]
    if encoder_decoder:
        keywords["decoder_input_ids"] = torch.tensor([prompt.prefix], device=network.device)
    written = network.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        pad_token_id=pad,
        **keywords,
    )
    tokens: list[int] = written[0, len(prompt.prefix) :].tolist()
    return tokens


def at_fixed_gamma(draft: Any, gamma: int) -> Any:
    """`draft` set to draft `gamma` tokens in every pass, as ours does: transformers' defaults adapt, and stop early."""
    draft.generation_config.num_assistant_tokens = gamma
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return draft
