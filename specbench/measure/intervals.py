"""Intervals by bootstrap over prompts.

Tokens of one prompt are not independent, so prompts are what is drawn again. Every estimate here is a function of
totals over prompts (a ratio of totals, or a ratio of such ratios), so one resample is a weighted sum.

Percentile method: simple and transformation-proof, but a little narrow with few prompts (its cover of a 95% interval
is nearer 90% at 10 prompts), and it cannot see what the sample lacks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FEW_PROMPTS = 10  # below this an interval is said to be rough


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval; the bounds are None with fewer than two prompts."""

    value: float
    low: float | None
    high: float | None


def bootstrap(
    columns: ArrayLike,
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    resamples: int,
    seed: int,
    level: float = 0.95,
) -> Interval:
    """The `statistic` of the column totals of `columns` [prompts, k], with its percentile interval.

    `statistic` maps totals [..., k] to values [...].
    """
    columns = np.asarray(columns, float)
    prompts = len(columns)
    value = float(statistic(columns.sum(0)))
    if prompts < 2:
        return Interval(value, None, None)
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(weights @ columns)
    tail = (1 - level) / 2
    low, high = np.nanquantile(values, [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Totals [..., (a, b)] to a / b."""
    return totals[..., 0] / totals[..., 1]


def ratio_of_ratios(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Totals [..., (a, b, c, d)] to (a / b) / (c / d)."""
    return (totals[..., 0] / totals[..., 1]) / (totals[..., 2] / totals[..., 3])
