"""α of a draft that is trained, on completions that its target writes.

It is Corollary 3.6's, by teacher forcing on tokens that the target wrote: the mean of Σ min(p, q), with p and q one-hot
at T=0. Logits past the tokenizer's last token are cut off before the softmax, as `sampling.standardise` does in
`specbench run`: p and q add up to 1 over the tokens that a run of the pair can write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench.engine.eager.model import EagerModel
from specbench.nouns import with_noun
from specbench.stats import Interval, over_rows, ratio
from specbench.train.logits import Logits
from specbench.train.recipe_schema import Recipe
from specbench.train.target_completions import completions, engine_of
from specbench.train.target_texts import Ids, padded, special_ids, written_tokens

AT_ONCE = 64  # sources that alpha is measured on, at most: a batch has no more logits than LOGITS
LOGITS = 2**26
SCORED = {"cpu": 2_000, "gpu": 10_000}  # tokens that it is measured on, as by `specbench alpha`


@dataclass(frozen=True)
class Alpha:
    """α with a 95% interval over prompts and the number of tokens it is a mean of."""

    interval: Interval
    tokens: int

    def __str__(self) -> str:
        return f"{in_words(self.interval, 3)} on {with_noun(self.tokens, 'token')}"


class AtPlaces(Protocol):
    """What computes logits only at chosen places of texts, as a head is large and a prompt long."""

    config: Any
    device: torch.device

    def __call__(self, places_BT: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, V] at these places of the decoder's texts `given`, as their target takes them."""
        ...


def in_words(interval: Interval, digits: int) -> str:
    """A value with its bounds, if it has any."""
    bounds = "" if interval.low is None else f" [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
    return f"{interval.value:.{digits}f}{bounds}"


def target_outputs(
    model: EagerModel,
    sources: list[Ids],
    *,
    sampled: bool,
    max_new_tokens: int,
    seed: int = 0,
    progress: bool = False,
) -> list[Ids]:
    """The target's outputs by `model` (`engine_of`) for the first of `sources`, on which `alpha` is measured.

    It ends when it has written as many tokens as `specbench alpha` scores.
    """
    most = SCORED["cpu" if model.device.type == "cpu" else "gpu"]
    outputs: list[Ids] = []
    written = 0
    title = f"{'sampled' if sampled else 'greedy'} outputs to measure α"
    made = completions(model, sources, sampled=sampled, max_new_tokens=max_new_tokens, seed=seed)
    with tqdm(total=most, desc=title, unit=" tokens", disable=not progress) as bar:
        while written < most and (output := next(made, None)) is not None:
            outputs.append(output)
            written += len(output)
            bar.update(len(output))
    return outputs


def alpha(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    sources: list[Ids],
    outputs: list[Ids],
    *,
    sampled: bool,
    size: int,
    progress: bool = False,
) -> Alpha:
    """α of `draft` on what `target` wrote for the first of `sources` (`target_outputs`): greedily (T=0), or at T=1."""
    return alpha_of_each(target, [draft], sources, outputs, sampled=sampled, size=size, progress=progress)[0]


def alpha_of_each(
    target: PreTrainedModel | AtPlaces,
    drafts: Sequence[PreTrainedModel | AtPlaces],
    sources: list[Ids],
    outputs: list[Ids],
    *,
    sampled: bool,
    size: int,
    progress: bool = False,
) -> list[Alpha]:
    """`alpha` of each of `drafts`, over the first `size` tokens; the target reads its outputs once for all."""
    sources = sources[: len(outputs)]
    sums_DP = np.zeros((len(drafts), len(sources)))
    counts_P = np.array([len(output) for output in outputs], float)
    groups = list(_groups(sources, outputs, size, target.config.is_encoder_decoder))
    for chosen in tqdm(groups, desc="measuring α", disable=not progress):
        sums_DP[:, chosen] = _overlaps(target, drafts, sources[chosen], outputs[chosen], sampled, size)
    return [
        Alpha(over_rows(np.stack([sums_P, counts_P], 1), ratio, scale="probability"), int(counts_P.sum()))
        for sums_P in sums_DP
    ]


def _groups(sources: list[Ids], outputs: list[Ids], size: int, encodes: bool) -> Iterator[slice]:
    """Sources that are read together, in their order: up to AT_ONCE, and as many as LOGITS allows."""
    start = longest = 0
    for place, (source, output) in enumerate(zip(sources, outputs, strict=True)):
        length = len(output) + (0 if encodes else len(source))
        longest = max(longest, length)
        if place > start and (place - start == AT_ONCE or (place - start + 1) * longest * size > LOGITS):
            yield slice(start, place)
            start, longest = place, length
    if outputs:
        yield slice(start, len(outputs))


def _overlaps(
    target: PreTrainedModel | AtPlaces, drafts: Sequence[PreTrainedModel | AtPlaces], sources: list[Ids],
    outputs: list[Ids], sampled: bool, size: int,
) -> list[np.ndarray[Any, Any]]:  # fmt: skip
    """For each draft, the sum over each output's tokens of Σ min(p, q)."""
    pad, _ = special_ids(target)
    output_BT = padded(outputs, pad)
    counted_BT = torch.tensor([[1.0] * len(o) + [0.0] * (output_BT.shape[1] - len(o)) for o in outputs])
    found = []
    with torch.inference_mode():
        p_BTV = _probabilities(target, sources, output_BT, pad, sampled, size)
        for draft in drafts:
            q_BTV = _probabilities(draft, sources, output_BT, pad, sampled, size)
            overlap_BT = torch.minimum(p_BTV, q_BTV).sum(-1) if sampled else (p_BTV == q_BTV).float()
            found.append((overlap_BT.cpu() * counted_BT).sum(-1).numpy())
    return found


def _probabilities(
    model: PreTrainedModel | AtPlaces, sources: list[Ids], output_BT: torch.Tensor, pad: int, sampled: bool, size: int
) -> torch.Tensor:
    """The distribution over the first `size` tokens at every output position; if not sampled, its likeliest token."""
    logits_BTV = _distributions(model, sources, output_BT, pad)[..., :size]
    return logits_BTV.softmax(-1) if sampled else logits_BTV.argmax(-1)


def _distributions(
    model: PreTrainedModel | AtPlaces, sources: list[Ids], output_BT: torch.Tensor, pad: int
) -> torch.Tensor:
    """fp32 logits for every output position, given the source and the outputs before it."""
    output_BT, device = output_BT.to(model.device), model.device
    places_BT = torch.arange(output_BT.shape[1], device=device).expand_as(output_BT)
    if model.config.is_encoder_decoder:
        source_BS = padded(sources, pad).to(device)
        start_B1 = torch.full_like(source_BS[:, :1], model.config.decoder_start_token_id)
        given = {
            "input_ids": source_BS, "attention_mask": (source_BS != pad).long(),
            "decoder_input_ids": torch.cat([start_B1, output_BT[:, :-1]], dim=1),
        }  # fmt: skip
    else:
        whole = [source + output for source, output in zip(sources, output_BT.tolist(), strict=True)]
        given = {"input_ids": padded(whole, pad).to(device)}
        places_BT = places_BT + torch.tensor([[len(source) - 1] for source in sources], device=device)
    if not isinstance(model, PreTrainedModel):
        return model(places_BT, **given).float()
    logits_BTV: torch.Tensor = at_places(model(**given).logits, places_BT).float()
    return logits_BTV


L = TypeVar("L", bound=Logits)


def at_places(logits: L, places_BT: torch.Tensor) -> L:
    """`logits` [B, T, V] of texts at some of their places."""
    rows_B1 = torch.arange(len(places_BT), device=places_BT.device)[:, None]
    return logits[rows_B1, places_BT]  # type: ignore[return-value]


def alphas(
    recipe: Recipe,
    target: PreTrainedModel,
    sources: dict[str, list[Ids]],
    drafts: Mapping[str, PreTrainedModel | AtPlaces],
    tokenizer: PreTrainedTokenizerFast,
    p_of: AtPlaces | None = None,
) -> dict[str, str]:
    """α of each of `drafts`, by its name in the model card, on the same outputs of `target`; greedy and sampled.

    `p_of` gives the target's logits if drafts share its run.
    """
    found = {}
    size = written_tokens(tokenizer, target, *drafts.values())
    model = engine_of(target, size)
    most = recipe.distill.max_new_tokens if recipe.data.completions else recipe.data.max_target
    for name, prompts in sources.items():
        for sampled in (False, True):
            settings: Any = {"sampled": sampled, "progress": recipe.progress}
            outputs = target_outputs(model, prompts, max_new_tokens=most, seed=recipe.seed, **settings)
            measured = alpha_of_each(p_of or target, list(drafts.values()), prompts, outputs, size=size, **settings)
            for called, one in zip(drafts, measured, strict=True):
                found[f"{called}, {name}, T={int(sampled)}"] = str(one)
    return found
