"""Two runs over the prompts they share, with intervals; and how many prompts an interval of a given width requires.

The effects of a prompt (length, difficulty) are in both runs and cancel, so the interval of a difference is narrower
than two separate intervals suggest.

Every estimate is a function of totals over prompts, so its variance over N prompts is the variance of a mean of N
contributions (the delta method): a prompt's contribution is the relative change of the estimate if it counted more. The
interval of a run is over prompts, and for times over the steps and passes within them (`stats.over_rows`); both are in
`Spread.deviation`. Half the width falls with the root of N.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench.analysis.distinct import groups_of
from specbench.analysis.summary import Part, times_of, variances_of
from specbench.records.run_record import PromptRecord, emitted_and_passes
from specbench.stats import (
    LEVEL,
    Interval,
    Jackknife,
    Scale,
    draw_weights,
    of_resamples,
    over_rows,
    ratio,
    ratio_of_ratios,
    t_quantile,
)

REACH = NormalDist().inv_cdf((1 + LEVEL) / 2)  # standard errors on either side of a 95% interval
POWER = 0.9  # how often a difference is to show
RESAMPLES = 1000
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """An estimate and how much prompts differ in it.

    Attributes:
        value: the estimate over all prompts.
        deviation: standard deviation of a prompt's contribution, relative to `value`.
        low: the lower bound of `deviation`'s own 95% interval; None for fewer than two prompts.
        high: the upper bound.
        prompts: how many prompts it is estimated from.
        weight: the effective number of prompts over their number (`stats`).
    """

    value: float
    deviation: float
    low: float | None
    high: float | None
    prompts: int
    weight: float = 1.0

    def within(self, prompts: int) -> float:
        """Half the width of a 95% interval over so many prompts, relative to the value."""
        return self._reach(prompts) * self.deviation / sqrt(prompts)

    def needed(self, within: float) -> Interval:
        """Prompts for a 95% interval that reaches no more than `within` of the value to either side."""
        low, high = (None if one is None else float(self._needed(one, within)) for one in (self.low, self.high))
        return Interval(float(self._needed(self.deviation, within)), low, high)

    def _reach(self, prompts: int) -> float:
        """Standard errors on either side of the interval."""
        return t_quantile((1 + LEVEL) / 2, max(1.0, self.weight * prompts - 1))

    def _needed(self, deviation: float, within: float) -> int:
        """The fewest prompts: between those by the normal distribution and those by t at these."""
        low = max(2, ceil((REACH * deviation / within) ** 2))
        high = max(low, ceil((self._reach(low) * deviation / within) ** 2))
        while low < high:
            middle = (low + high) // 2
            enough = self._reach(middle) * deviation <= within * sqrt(middle)
            low, high = (low, middle) if enough else (middle + 1, high)
        return low


def alpha_spread(sums: Sequence[tuple[float, int]]) -> Spread:
    """Spread of alpha, from the sum of beta and the tokens of each prompt."""
    columns = np.asarray(sums, float)
    return _spread(columns, np.array([1.0, -1.0]), np.zeros_like(columns))


def speedup_spread(prompts: Sequence[PromptRecord], parts: Sequence[Part]) -> Spread:
    """Spread of the measured speedup over `parts` (`summary.PARTS`)."""
    columns = np.array([times_of(prompt, parts) for prompt in prompts], float)
    variances = np.array([variances_of(prompt) for prompt in prompts], float)
    return _spread(columns, np.array([1.0, -1.0, -1.0, 1.0]), variances)


def detectable(difference: Interval) -> float | None:
    """The smallest difference that these prompts would have shown nine times in ten; None without an interval.

    It follows from the interval of the difference that they gave.
    """
    if difference.low is None or difference.high is None:
        return None
    error = (difference.high - difference.low) / (2 * REACH)
    return (REACH + NormalDist().inv_cdf(POWER)) * error


def _spread(columns: Floats, powers: Floats, variances: Floats) -> Spread:
    """Spread of a product of column totals to these powers: `columns` [N, K], `variances` within each entry [N, K]."""
    count, totals = len(columns), columns.sum(0)
    value = float(np.prod(totals**powers))
    shares_NK = count * columns / totals
    contributions_N = (shares_NK * powers).sum(-1)
    squares_N = contributions_N**2 + (count**2 * variances / totals**2).sum(-1)
    if count < 2:
        return Spread(value, 0.0, None, None, count)
    deviation = float(np.sqrt(squares_N.sum() / (count - 1)))
    weights_SN = draw_weights(count, RESAMPLES, np.random.default_rng(0))
    resampled = of_resamples(deviation, np.sqrt(weights_SN @ squares_N / (count - 1)), count)
    weight = (Jackknife.of(columns).freedom + 1) / count
    return Spread(value, deviation, resampled.low, resampled.high, count, weight)


Pairs = list[tuple[PromptRecord, PromptRecord]]


@dataclass(frozen=True)
class Compared(Interval):
    """A difference or ratio, and the smallest `detectable` difference from none, nine times in ten."""

    detectable: float | None

    @staticmethod
    def of(one: Interval) -> "Compared":
        return Compared(one.value, one.low, one.high, detectable(one))


UNKNOWN = Compared(math.nan, None, None, None)  # one of the runs, of a server, does not show it


@dataclass(frozen=True)
class Paired:
    """Run A against run B. A ratio above 1 is in favour of A."""

    prompts: int
    faster: Compared  # time per token of B, divided by A's, as decoded
    speedup: Compared  # speedup of A, divided by B's, each against its own baseline, which cancels a slower hour
    alpha: Compared  # alpha of A less alpha of B
    tokens_per_pass: Compared  # of A, divided by B's


def shared(a: Sequence[PromptRecord], b: Sequence[PromptRecord]) -> Pairs:
    """Prompts that are in both runs, with the same index and prompt."""
    there = {(prompt["index"], prompt["prompt"]): prompt for prompt in b}
    return [(prompt, there[key]) for prompt in a if (key := (prompt["index"], prompt["prompt"])) in there]


def compare(pairs: Pairs) -> Paired:
    """Totals over the shared prompts, with intervals over prompts."""
    groups = groups_of([a for a, _ in pairs])

    def interval(columns: ArrayLike, statistic: Callable[[Floats], Floats], scale: Scale = "ratio") -> Compared:
        totals = np.sum(columns, axis=0)
        if ((totals[1::2] if scale == "difference" else totals) <= 0).any():
            return UNKNOWN
        return Compared.of(over_rows(columns, statistic, scale=scale, groups=groups))

    times = [(*times_of(a, ("decode_s",)), *times_of(b, ("decode_s",))) for a, b in pairs]
    betas = [(sum(a["beta"]), len(a["beta"]), sum(b["beta"]), len(b["beta"])) for a, b in pairs]
    tokens = [(*_tokens_and_passes(a), *_tokens_and_passes(b)) for a, b in pairs]
    return Paired(
        len(pairs),
        faster=interval([[*ours[6:], *ours[2:4]] for ours in times], ratio_of_ratios),
        speedup=interval(times, lambda t: ratio_of_ratios(t[..., :4]) / ratio_of_ratios(t[..., 4:])),
        alpha=interval(betas, lambda t: ratio(t[..., :2]) - ratio(t[..., 2:]), "difference"),
        tokens_per_pass=interval(tokens, ratio_of_ratios),
    )


def _tokens_and_passes(prompt: PromptRecord) -> tuple[int, int]:
    """Tokens of a completion with a draft, and its passes; for a server, what it counted."""
    if "served" in prompt:
        return emitted_and_passes(prompt)
    return len(prompt["speculative"].tokens), len(prompt["speculative"].passes)
