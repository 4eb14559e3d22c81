"""Bootstrap intervals; nothing else in the package resamples.

Tokens of one prompt are not independent, so prompts are resampled, not tokens. Every estimate is a function of
totals over prompts (a ratio of totals, or a ratio of such ratios), so one resample is a weighted sum.

Percentile method: simple and invariant under transformations, but too narrow with few prompts (the coverage of a 95%
interval is about 90% at 10 prompts). Where that matters, over a few processes (`runs`) or at the levels of a run that
looks several times (`until`), the interval is `student`'s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, sqrt
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

FEW_PROMPTS = 10  # below this an interval is said to be rough
LEVEL = 0.95
MOST_FREEDOM = 1e5  # degrees of freedom; with more, t is normal
BLOCK = 4_000_000  # weights drawn at a time: memory does not grow with rows times resamples


class IntervalRecord(TypedDict):
    """An estimate with its 95% interval, as records hold it; the bounds are null with fewer than two prompts."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval; the bounds are None with fewer than two prompts."""

    value: float
    low: float | None
    high: float | None

    def to_json(self) -> IntervalRecord:
        return {"value": self.value, "low": self.low, "high": self.high}


def bootstrap(
    columns: ArrayLike,
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    resamples: int,
    seed: int,
    variances: ArrayLike | None = None,
    level: float | None = None,
    by_process: Sequence[float] = (),
) -> Interval:
    """The `statistic` of the column totals of `columns` [N, K], with its percentile interval over the N rows.

    `statistic` maps totals [..., K] to values [...]. `variances` [N, K] resamples within rows as well (a two-stage
    bootstrap): the variance that each entry has as a sum over what the row holds, such as its steps, if these were
    drawn again with replacement. Sums of many draws are drawn as normal. With a `level`, or the values `by_process`,
    the interval is `student`'s.
    """
    columns = np.asarray(columns, float)
    value = float(statistic(columns.sum(0)))
    totals_SK = resampled_totals(columns, resamples, seed, variances)
    if not len(totals_SK):
        return Interval(value, None, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        return interval(value, statistic(totals_SK), len(columns), level, by_process)


def resampled_totals(
    columns: ArrayLike, resamples: int, seed: int, variances: ArrayLike | None = None
) -> NDArray[np.float64]:
    """The column totals of `columns` [N, K] under each resample of its rows: [S, K].

    With fewer than two rows, or without resamples, [0, K]. `variances` as in `bootstrap`.
    """
    columns = np.asarray(columns, float)
    if len(columns) < 2 or resamples < 1:
        return np.empty((0, columns.shape[-1]))
    generator = np.random.default_rng(seed)
    blocks = []
    for start in range(0, resamples, size := max(1, BLOCK // len(columns))):
        weights_SN = draw_weights(len(columns), min(size, resamples - start), generator)
        spread_SK = None if variances is None else np.sqrt(weights_SN @ np.asarray(variances, float))
        blocks.append((weights_SN @ columns, spread_SK))
    totals_SK: NDArray[np.float64] = np.concatenate([totals for totals, _ in blocks])
    if variances is not None:
        deviations_SK = np.concatenate([spread for _, spread in blocks if spread is not None])
        totals_SK = totals_SK + deviations_SK * generator.standard_normal(totals_SK.shape)
    return totals_SK


def draw_weights(rows: int, resamples: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """How often each of N `rows` is drawn in each of S resamples: [S, N]."""
    return generator.multinomial(rows, np.full(rows, 1 / rows), size=resamples)


def interval(
    value: float,
    resampled_S: NDArray[np.float64],
    rows: int,
    level: float | None = None,
    by_process: Sequence[float] = (),
) -> Interval:
    """`value` with its 95% interval by percentiles; by `student` where a `level` or processes are given."""
    if level is None and not by_process:
        return percentiles(value, resampled_S)
    return student(value, resampled_S, rows, level or LEVEL, by_process)


def percentiles(value: float, resampled_S: NDArray[np.float64]) -> Interval:
    """`value` with the interval that its values under S resamples span; without bounds where there are none."""
    if not len(resampled_S):
        return Interval(value, None, None)
    low, high = np.nanquantile(resampled_S, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def student(
    value: float,
    resampled_S: NDArray[np.float64],
    rows: int,
    level: float = LEVEL,
    by_process: Sequence[float] = (),
) -> Interval:
    """`value` with an interval of `level` by Student's t on the log scale.

    The variance of the log has two parts. That over the rows (prompts) is the variance of the logs of the values
    `resampled_S`, with `rows` - 1 degrees of freedom. That over processes is s² / P of the logs of `by_process`, the P
    values that each process measured on the same rows, with P - 1. The degrees of freedom of their sum are those of
    Welch and Satterthwaite (Satterthwaite 1946, An approximate distribution of estimates of variance components).
    Prompts and processes are crossed, so noise within a process counts in both parts: the interval is at least as wide
    as it should be. Without bounds where nothing was resampled, or where a value is not above 0.
    """
    logs = np.log(resampled_S[resampled_S > 0]) if value > 0 else np.empty(0)
    if len(logs) < 2 or rows < 2 or any(one <= 0 for one in by_process):
        return Interval(value, None, None)
    parts = [(float(np.var(logs)) * rows / (rows - 1), rows - 1)]  # a bootstrap's variance has N in the denominator
    if len(by_process) > 1:
        parts.append((float(np.var(np.log(by_process), ddof=1)) / len(by_process), len(by_process) - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return Interval(value, value, value)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    reach = t_quantile((1 + level) / 2, freedom) * sqrt(variance)
    return Interval(value, value * exp(-reach), value * exp(reach))


@cache
def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t above its median, for 1 or more degrees of freedom.

    With t = √f tan θ the density of θ is cos^(f-1) θ up to a factor: its sum over a fine grid is inverted.
    """
    freedom = min(freedom, MOST_FREEDOM)
    theta = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos(theta) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(sqrt(freedom) * np.tan(np.interp(2 * probability - 1, mass / mass[-1], theta)))


def ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Totals [..., (a, b)] to a / b."""
    return totals[..., 0] / totals[..., 1]


def ratio_of_ratios(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Totals [..., (a, b, c, d)] to (a / b) / (c / d)."""
    return ratio(totals[..., :2]) / ratio(totals[..., 2:])
