"""transformers' own ways of decoding, on the very networks that we run: greedy and beam search, assisted generation."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from specbench.algorithm.beam import BeamSettings, Hypothesis
from specbench.engine.session import Prompt, up_to_end


def generate(network: Any, prompt: Prompt, max_new_tokens: int, **keywords: Any) -> list[int]:
    """The completion of only `prompt` by `network.generate`; greedy unless `keywords` say otherwise."""
    written = _generated(network, prompt, max_new_tokens, num_beams=1, **keywords)
    tokens: list[int] = written[0, len(prompt.prefix) :].tolist()
    return tokens


def generate_many(
    network: Any, prompts: Sequence[Prompt], max_new_tokens: int, ends: frozenset[int]
) -> list[list[int]]:
    """The greedy completions of `prompts` by `network.generate`, in one batch.

    Sources are padded at their end, prompts of a decoder-only model at their beginning, as `generate` requires.
    """
    encoder_decoder = network.config.is_encoder_decoder
    read = [prompt.source if encoder_decoder else prompt.prefix for prompt in prompts]
    length, device = max(map(len, read)), network.device
    ids, mask = (torch.zeros(len(read), length, dtype=torch.long, device=device) for _ in range(2))
    for row, tokens in enumerate(read):
        place = slice(0, len(tokens)) if encoder_decoder else slice(length - len(tokens), length)
        ids[row, place], mask[row, place] = torch.tensor(tokens, device=device), 1
    begun = length
    keywords: dict[str, object] = {}
    if encoder_decoder:
        keywords["decoder_input_ids"] = torch.tensor([prompt.prefix for prompt in prompts], device=device)
        begun = len(prompts[0].prefix)
    written = network.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1,
        pad_token_id=_padding(network), **keywords,
    )  # fmt: skip
    return [up_to_end(tokens, ends) for tokens in written[:, begun:].tolist()]


def beam_search(network: Any, prompt: Prompt, settings: BeamSettings, vocabulary_size: int) -> list[Hypothesis]:
    """The hypotheses of `network.generate` with a beam search after `prompt`, the best first.

    The head's padding past `vocabulary_size` is suppressed, as it is in ours; generate knows of none.
    """
    padding = list(range(vocabulary_size, network.get_output_embeddings().weight.shape[0]))
    found = _generated(
        network, prompt, settings.max_new_tokens, num_beams=settings.width, num_return_sequences=settings.width,
        length_penalty=settings.length_penalty, early_stopping=settings.early_stopping, suppress_tokens=padding or None,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    begun = len(prompt.prefix)
    texts = [(*prompt.prefix, *up_to_end(tokens[begun:], settings.eos_ids)) for tokens in found.sequences.tolist()]
    return [Hypothesis(text, score) for text, score in zip(texts, found.sequences_scores.tolist(), strict=True)]


def _generated(network: Any, prompt: Prompt, max_new_tokens: int, **keywords: Any) -> Any:
    encoder_decoder = network.config.is_encoder_decoder
    ids = torch.tensor([prompt.source if encoder_decoder else prompt.prefix], device=network.device)
    if encoder_decoder:
        keywords["decoder_input_ids"] = begun = torch.tensor([prompt.prefix], device=network.device)
        if keywords.get("assistant_model") is not None:
            # Without it the draft appends the whole completion to its cache again in each pass (5.23).
            keywords["decoder_attention_mask"] = torch.ones_like(begun)
    return network.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        pad_token_id=_padding(network),
        **({"do_sample": False} | keywords),
    )


def _padding(network: Any) -> int | None:
    ends, padding = network.generation_config.eos_token_id, network.generation_config.pad_token_id
    if padding is None:
        padding = ends if isinstance(ends, int) or ends is None else ends[0]
    found: int | None = padding
    return found


def at_fixed_gamma(draft: Any, gamma: int) -> Any:
    """`draft` set to draft `gamma` tokens in every pass, as ours does: transformers' defaults adapt, and stop early."""
    draft.generation_config.num_assistant_tokens = gamma
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    decoder_layers = getattr(draft.config, "num_decoder_layers", None)
    if decoder_layers is None or decoder_layers >= draft.config.num_layers:
        return draft
    # transformers makes a cache of as many layers as the encoder has, and 5.17 fails at those that nothing writes to.
    helper = copy.copy(draft)
    helper.config = copy.deepcopy(draft.config)
    helper.config.num_layers = decoder_layers
    return helper
