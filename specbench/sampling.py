"""Logits to standardised probabilities, and draws from them (section 2.2 of the paper).

Argmax, temperature, top-k and nucleus are all plain sampling from an adjusted distribution. A distribution is
adjusted once, here; drawing, accepting and the residual all use that one result.

Shapes: L positions, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specbench.deferred import torch
from specbench.kernels import rows as kernels

if TYPE_CHECKING:
    from torch import Tensor

NOT_FINITE = "the model's logits are not finite"
NOT_DRAWN = -1  # instead of a token
ROUNDING = 2.0**-20  # of a mass of probabilities in fp32


@dataclass(frozen=True)
class Sampling:
    """How a distribution is adjusted, in this order. Temperature 0 is argmax; None is off.

    `min_p`: tokens below this share of the likeliest token's probability are left out (Nguyen et al. 2024).
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


BEFORE_ARGMAX = Sampling(temperature=1.0)  # the plain softmax, in which a draft says how sure it is of a token


def before_argmax(sampling: Sampling) -> Sampling:
    """The sampling of a rule that compares p before argmax: with T = 1 instead of T = 0, and the same top-k and top-p.

    At T > 0 there is no argmax, and it is `sampling` itself.
    """
    return replace(sampling, temperature=1.0) if sampling.temperature == 0 else sampling


def standardise(logits_LV: Tensor, sampling: Sampling, vocabulary_size: int) -> Tensor:
    """Adjusted probabilities, fp32 [L, vocabulary_size].

    Logits past the tokenizer's last token are padding of the weight matrix (T5: 32,128 logits, 32,100 tokens) and are
    cut off. At T = 0 the highest entry takes all, the first of equal entries, as in `argmax`. A row without a finite
    maximum becomes NaN, also at T = 0, and `draw` raises for it.
    """
    if sampling.temperature > 0:
        size = min(vocabulary_size, logits_LV.shape[-1])
        found_LV = kernels.standardised(logits_LV, sampling.temperature, sampling.top_k, sampling.top_p, size)
        if found_LV is not None:
            return _above_share(found_LV, sampling.min_p)
    logits_LV = logits_LV[..., :vocabulary_size].float()
    if sampling.temperature == 0:
        highest_L1, index_L1 = logits_LV.max(-1, keepdim=True)
        one_L1 = torch.where(highest_L1.isfinite(), 1.0, torch.nan)
        return torch.zeros_like(logits_LV).scatter_(-1, index_L1, one_L1)
    if sampling.temperature != 1:
        logits_LV = logits_LV / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits_LV.shape[-1]:
        # All that equal the k-th: which of equals a search finds may depend on how many rows it searches.
        lowest_L1 = logits_LV.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits_LV = logits_LV.masked_fill(logits_LV < lowest_L1, -torch.inf)
    return _above_share(_nucleus(logits_LV.softmax(-1), sampling.top_p), sampling.min_p)


def _nucleus(probabilities_LV: Tensor, top_p: float | None) -> Tensor:
    """The fewest most likely tokens whose mass reaches `top_p`, renormalised; None and 1 are all tokens.

    A mass that is below `top_p` by rounding reaches it: of .45, .35 and .2 two tokens reach .8, whatever rounds them
    (`keep_nucleus` of the kernels does the same).
    """
    if top_p is None or top_p >= 1:
        return probabilities_LV
    sorted_LV, index_LV = probabilities_LV.sort(dim=-1, descending=True, stable=True)
    mass_before_LV = sorted_LV.cumsum(-1, dtype=widest(sorted_LV.device)) - sorted_LV
    sorted_LV = sorted_LV.masked_fill(mass_before_LV >= top_p - ROUNDING, 0.0)
    kept_LV = torch.zeros_like(probabilities_LV).scatter_(-1, index_LV, sorted_LV)
    return kept_LV / kept_LV.sum(-1, keepdim=True)


def _above_share(probabilities_LV: Tensor, min_p: float | None) -> Tensor:
    """The tokens with at least `min_p` times the highest probability, renormalised; None is all tokens."""
    if min_p is None:
        return probabilities_LV
    least_L1 = min_p * probabilities_LV.amax(-1, keepdim=True)
    kept_LV = probabilities_LV.masked_fill(probabilities_LV < least_L1, 0.0)
    return kept_LV / kept_LV.sum(-1, keepdim=True)


def most_likely(logits_LV: Tensor, vocabulary_size: int, rows: int = 1) -> list[int]:
    """The token with all mass at T = 0, for each of the last `rows` rows; needs no row of probabilities.

    Raises FloatingPointError if a row has no finite maximum.
    """
    # A draft asks this for every token, beside a step of some hundred us; torch's search takes 15 us for a row of 8,000
    # in bf16, and each slice 2.
    tokens = kernels.likeliest(logits_LV, vocabulary_size, rows)
    return checked(argmax(logits_LV[-rows:], vocabulary_size).tolist() if tokens is None else tokens)


def one_hot(tokens_L: Sequence[int], vocabulary_size: int, device: torch.device) -> Tensor:
    """Rows [L, V] that give all mass to one token each."""
    rows_LV = torch.zeros(len(tokens_L), vocabulary_size, device=device)
    if tokens_L:
        rows_LV[range(len(tokens_L)), list(tokens_L)] = 1.0
    return rows_LV


@dataclass(frozen=True)
class DrawnNumbers:
    """The random numbers of one verdict, drawn before it: one per draft token for its test, and one for the next token.

    A rule that draws at each place and tests nothing gets none for tests, and one for each place.

    A rule that takes them in this order from a generator gets the same numbers from here. So it can run in a captured
    graph, in which no generator draws.
    """

    trials_G: Tensor
    next_1: Tensor

    @classmethod
    def of(cls, count: int, generator: torch.Generator, device: torch.device, at_each: bool = False) -> DrawnNumbers:
        """The numbers for `count` draft tokens."""
        if at_each:
            return cls(torch.empty(0, device=device), uniforms(count + 1, generator, device))
        return cls(trials(count, generator, device), uniforms(1, generator, device))


def trials(count: int, generator: torch.Generator | DrawnNumbers, device: torch.device) -> Tensor:
    """Numbers [count] in [0, 1), fp32, for the tests of as many draft tokens."""
    if isinstance(generator, DrawnNumbers):
        return generator.trials_G
    return torch.rand(count, generator=generator, device=device)


def widest(device: torch.device) -> torch.dtype:
    """The dtype of sums over a vocabulary, and of numbers to draw by: fp64; fp32 on Apple's GPU, which has no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def uniforms(count: int, generator: torch.Generator | DrawnNumbers, device: torch.device) -> Tensor:
    """Numbers [count] in [0, 1) for as many draws, `widest`: in fp32 their grid is too coarse for a large vocabulary.

    Raises ValueError if another count was drawn beforehand.
    """
    if isinstance(generator, DrawnNumbers):
        if count != len(generator.next_1):
            raise ValueError(f"{len(generator.next_1)} number was drawn beforehand, and {count} are needed")
        return generator.next_1
    return torch.rand(count, generator=generator, device=device, dtype=widest(device))


def drawn(probabilities_LV: Tensor, uniform_L: Tensor) -> Tensor:
    """One token from each row for each of its uniform numbers [L] or [L, K], never a token of probability 0.

    The distribution function is inverted. NOT_DRAWN from a row that has no mass or is not finite. Nothing leaves the
    device. The sum runs in fp64: in fp32 its rounding would shift mass between the tokens of a large vocabulary.
    """
    if uniform_L.dim() == 1 and (tokens_L := kernels.drawn(probabilities_LV, uniform_L)) is not None:
        return tokens_L
    cumulative_LV = probabilities_LV.cumsum(-1, dtype=widest(probabilities_LV.device))
    mass_L1 = cumulative_LV[:, -1:]
    uniform_LK = uniform_L if uniform_L.dim() == 2 else uniform_L.unsqueeze(-1)
    found_LK = torch.searchsorted(cumulative_LV, uniform_LK * mass_L1, right=True)
    return torch.where(mass_L1 > 0, found_LK, NOT_DRAWN).view_as(uniform_L)  # NaN is not above 0


def draw(probabilities_V: Tensor, generator: torch.Generator) -> int:
    """One token from [V], as `drawn`.

    Raises FloatingPointError if the distribution is not finite.
    """
    (token,) = checked(drawn(probabilities_V.unsqueeze(0), uniforms(1, generator, probabilities_V.device)).tolist())
    return token


def checked(tokens: list[int]) -> list[int]:
    """`tokens`. Raises FloatingPointError if one is NOT_DRAWN."""
    if NOT_DRAWN in tokens:
        raise FloatingPointError(NOT_FINITE)
    return tokens


def argmax(logits_LV: Tensor, vocabulary_size: int) -> Tensor:
    """A token [L] of each row, as `most_likely` on the device: NOT_DRAWN if a row has no finite maximum."""
    highest_L, index_L = logits_LV[:, :vocabulary_size].float().max(-1)
    return torch.where(highest_L.isfinite(), index_L, NOT_DRAWN)


@dataclass(frozen=True)
class TokenChoice:
    """How the next token is chosen from logits: drawn from the standardised row, at T = 0 found without it."""

    sampling: Sampling
    vocabulary_size: int

    @property
    def draws(self) -> bool:
        """Whether a token takes a random number."""
        return self.sampling.temperature > 0

    def uniforms(self, count: int, generator: torch.Generator) -> Tensor | None:
        """The uniform numbers of `count` choices from `generator`; None if none are needed."""
        return uniforms(count, generator, generator.device) if self.draws else None

    def on_device(self, logits_1V: Tensor, uniform_1: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The token [1] and the row [1, V] that it was drawn from; no row at T = 0, when all mass is on the token.

        Nothing leaves the device: NOT_DRAWN if the row is not finite.
        """
        if uniform_1 is None:
            return argmax(logits_1V, self.vocabulary_size), None
        row_1V = standardise(logits_1V, self.sampling, self.vocabulary_size)
        return drawn(row_1V, uniform_1), row_1V

    def __call__(self, logits_LV: Tensor, uniform_1: Tensor | None) -> tuple[int, Tensor | None]:
        """The token that follows the last position, as a number, and the row that it was drawn from.

        Raises FloatingPointError if the distribution is not finite.
        """
        if uniform_1 is None:
            (token,) = most_likely(logits_LV, self.vocabulary_size)
            return token, None
        token_1, row_1V = self.on_device(logits_LV[-1:], uniform_1)
        (token,) = checked(token_1.tolist())
        return token, row_1V


def draw_next(
    logits_LV: Tensor, sampling: Sampling, vocabulary_size: int, generator: torch.Generator
) -> tuple[int, Tensor | None]:
    """One token that follows the last position, and the row [1, V] that `TokenChoice` drew it from.

    Raises FloatingPointError if the distribution is not finite.
    """
    choice = TokenChoice(sampling, vocabulary_size)
    return choice(logits_LV, choice.uniforms(1, generator))
