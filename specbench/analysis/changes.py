"""Changes between two measurements, or two groups of them, and how certain they are.

Each quantity is a function of totals over prompts; a prompt's contribution to it is the relative change of the value if
that prompt counted more (`Measurement.by_prompt`). The log of the ratio of two values is compared with the standard
error of the differences of contributions, prompt by prompt, by Student's t. Measurements of other prompts are compared
by the two errors together.

Times also differ between processes (address layout, caches, clocks) by more than prompts show: `BETWEEN` is added.
At equal seeds α and tokens per pass are the same in each process, so nothing is added to theirs.

Where others use the machine's caches and memory, the target's own step can take half as long again in the next process.
A pass then takes longer by anything from nothing to as much, so c, v and the speedup may differ by that factor without
a change. They count as changed only beyond it; BETWEEN covers the first `USUAL` of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis.as_measurement import log_variance
from specbench.analysis.paired import REACH
from specbench.records.measurements import PER_UNIT, Measurement, Quantity

FALSE_ALARMS = 0.01  # the probability of an alarm in a comparison, or of a step in a history, if nothing changed
# The standard deviation between fresh processes, relative, over what the contributions of prompts explain. Assumed, and
# meant to be high: `python tools/power.py` estimates it from repeats without a change and says if a value is too low.
# A record of several processes (`runs`) says itself how far their speedups are apart.
BETWEEN: dict[Quantity, float] = {"speedup": 0.015, "c": 0.03, "v": 0.02, "memory": 0.005}
USUAL = 0.03  # the target's own step on a quiet machine, between two processes, relative
OF_STEPS: tuple[Quantity, ...] = ("speedup", "c", "v")  # relative to the target's own step
PROCESSES = 50  # BETWEEN counts as if estimated from so many
Part = tuple[float, float]  # a variance, and its degrees of freedom


@dataclass(frozen=True)
class Change:
    """A ratio after / before with its 95% interval, and the p of 'nothing changed'.

    Infinite if the quantity was 0, which only α can be. `paired`: prompts in both, or 0.
    """

    ratio: float
    low: float
    high: float
    p: float
    paired: int


def change(before: Sequence[Measurement], after: Sequence[Measurement], name: Quantity) -> Change | None:
    """The change of a quantity from the mean of some measurements to the mean of others.

    None if one side lacks the quantity, or prompts are too few for an error.
    """
    sides = [[row for row in side if name in row["quantities"]] for side in (before, after)]
    if not all(sides):
        return None
    values = [[row["quantities"][name][0] for row in side] for side in sides]
    if min(map(min, values)) <= 0:
        old, new = values[0][-1], values[1][-1]
        ratio = new / old if old > 0 else 1.0 if new == old else math.inf
        return Change(ratio, ratio, ratio, float(new == old), 0)
    first, second = (float(np.mean(np.log(side))) for side in values)
    effect = second - first
    parts, paired = over_prompts(sides, name)
    if parts is None:
        return None
    if name in BETWEEN:
        between = sum(sum(_between(row, name) for row in side) / len(side) ** 2 for side in sides)
        parts.append((between, PROCESSES - 1))
    variance = sum(part for part, _ in parts)
    if abs(effect) < 1e-5 or variance == 0:  # equal to the digits of a measurement
        return Change(1.0, 1.0, 1.0, 1.0, paired)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)  # Satterthwaite 1946
    error = math.sqrt(variance)
    reach = _student(REACH, freedom) * error
    allowed = max(0.0, abs(slowdown(*sides)) - USUAL) if name in OF_STEPS else 0.0
    beyond = max(0.0, abs(effect) - allowed)
    p = math.erfc(_normal(beyond / error, freedom) / math.sqrt(2))
    return Change(math.exp(effect), math.exp(effect - reach), math.exp(effect + reach), p, paired)


def slowdown(before: Sequence[Measurement], after: Sequence[Measurement]) -> float:
    """The log of the ratio of the target's own mean steps, after / before; 0 if it is not known of all."""
    steps = [[row.get("step_s") for row in side] for side in (before, after)]
    old, new = ([math.log(one) for one in side if one is not None] for side in steps)
    return float(np.mean(new) - np.mean(old)) if len(old) == len(before) and len(new) == len(after) else 0.0


def _between(row: Measurement, name: Quantity) -> float:
    """The variance between processes of a measurement, which may be the mean over several.

    An estimate of the spread from a few processes is uncertain, and counts only if it is above BETWEEN.
    """
    own = row.get("between", 0.0) if name == "speedup" else 0.0
    return max(BETWEEN[name], own) ** 2 / row.get("runs", 1)


def over_prompts(sides: Sequence[Sequence[Measurement]], name: Quantity) -> tuple[list[Part] | None, int]:
    """The variance of a change over prompts, and how many are paired; None if there are too few prompts."""
    rows = [row for side in sides for row in side]
    if not any(name in row["by_prompt"] for row in rows):
        return [], 0
    shares = [[np.array(row["by_prompt"].get(name, ()), float) / PER_UNIT for row in side] for side in sides]
    fewest = min(len(one) for side in shares for one in side)
    if fewest < 2:
        return None, 0
    rounding = sum(1 / (12 * PER_UNIT**2 * len(side)) for side in shares)
    if len({(row["prompts"], len(row["by_prompt"][name])) for row in rows}) == 1:
        apart = np.mean(shares[1], axis=0) - np.mean(shares[0], axis=0)
        return [(log_variance(apart) + rounding / fewest, fewest - 1)], fewest
    return [(float(np.mean([log_variance(one) for one in side])), min(map(len, side)) - 1) for side in shares], 0


def _normal(t: float, freedom: float) -> float:
    """The standard normal deviate as rare as this value of Student's t (Wallace 1959), to 6% of p from 5 degrees on."""
    return (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))


def _student(z: float, freedom: float) -> float:
    """The inverse of `_normal`."""
    scaled = z * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(scaled * scaled / freedom))


def adjusted(ps: Sequence[float]) -> list[float]:
    """p after the correction of Benjamini and Hochberg: the least share of false discoveries at which each counts."""
    order = np.argsort(ps)[::-1]
    ranks = np.arange(len(ps), 0, -1)
    least = np.minimum.accumulate(np.minimum(1.0, np.asarray(ps, float)[order] * len(ps) / ranks))
    found = np.empty(len(ps))
    found[order] = least
    return [float(one) for one in found]
