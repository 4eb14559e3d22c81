"""Detect what disturbed the machine while a run was timed. c, v and speedups are then invalid; alpha is not.

Signs, each enough:

- The process waited for a core: more than `MOST_WAITED` of the time that its threads were ready to run, over all
  prompts, if the system reports it (`costs.core_time`).
- Neighbouring steps of the target alone differ: in more than one of ten pairs by more than `MOST_UNEVEN` times. Only
  steps of one completion are compared with each other, without the first, so that neither longer prompts nor a growing
  cache count. Steps shorter than `SHORTEST_S` are compared as means over that long: a single interrupt makes a step of
  .2 ms half as long again, and a neighbour's time slice outlasts many of them. This is all that there is for records
  without load.
- The speedup is impossible: speculative decoding cannot gain more than its tokens per pass (over v, if v < 1).
  v below 1 is no sign: kernels for a single row may be slower than kernels for several. `SLACK` leaves room for
  rounding.
- The machine was held back, or shared, beside more than `MOST_MOMENTS` of the prompts (`experiment.machine` reads its
  state before and after each): the processor's frequency was capped below `LEAST_CAP`, its cores throttled for heat,
  a GPU's driver gave a reason for lower clocks, its clock fell below `LEAST_CLOCK` of the run's greatest, or other
  processes computed on it.

Thresholds and error rates are from runs of 20 prompts of the shipped pair on 2 cores (docs/method.md#contention).

Plain numbers only.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from specbench.records.machine_record import GpuState, StateRecord
from specbench.records.numbers import Disturbed
from specbench.records.run_record import PromptRecord

MOST_WAITED = 0.05
MOST_UNEVEN = 1.5
SHORTEST_S = 1e-3
FEWEST_PAIRS = 20
SLACK = 0.05
MOST_MOMENTS = 0.05
LEAST_CAP = 0.9
LEAST_CLOCK = 0.8


@dataclass(frozen=True)
class Disturbance:
    """The signs of other work on the machine, or of a machine that was held back.

    Attributes:
        waited: share of the time for which the process waited for a core; None if it is not known.
        unevenness: the 90th percentile of the ratio of neighbouring steps, or means over `SHORTEST_S`, longer over
            shorter; None with fewer than `FEWEST_PAIRS` pairs.
        signs: the signs of a disturbance, in words.
    """

    waited: float | None
    unevenness: float | None
    signs: list[str] = field(default_factory=list)

    @property
    def all_signs(self) -> str | None:
        """The signs as one text; None without a sign."""
        return "; ".join(self.signs) or None

    def columns(self) -> Disturbed:
        """Columns of a record's summary for the disturbance."""
        return {
            "disturbed": bool(self.signs),
            "disturbed_by": self.all_signs,
            "waited": self.waited,
            "unevenness": self.unevenness,
        }


def disturbance(prompts: Sequence[PromptRecord], summary: Mapping[str, Any]) -> Disturbance:
    """The signs in raw prompts, and in the `summary` that was made of them."""
    found = of_steps(_waited(prompts), [prompt["baseline"].steps_s[1:] for prompt in prompts])
    of_machine = of_states([prompt.get("states", []) for prompt in prompts])
    return replace(found, signs=found.signs + of_machine + impossible(summary))


def of_steps(waited: float | None, steps_s: Sequence[Sequence[float]]) -> Disturbance:
    """The signs in the share of time waited for a core, and in steps of the target alone.

    `steps_s` holds the seconds of the steps of each completion, without its first.
    """
    unevenness, signs = _unevenness(steps_s), []
    if waited is not None and waited > MOST_WAITED:
        signs.append(f"it waited for a core {100 * waited:.0f}% of its time")
    if unevenness is not None and unevenness > MOST_UNEVEN:
        signs.append(f"one in ten neighbouring steps differs more than {unevenness:.1f} times")
    return Disturbance(waited, unevenness, signs)


def of_states(states: Sequence[Sequence[StateRecord]]) -> list[str]:
    """The signs in the states of the machine beside each prompt, in words. Nothing is said of what is not known."""
    every = [one for some in states for one in some]
    gpus = [one["gpu"] for one in every if "gpu" in one]
    caps = [one["cap"] for one in every if "cap" in one]
    # Counts since the system started, which begin again with it.
    counts = [one["overheated"] for one in every if "overheated" in one]
    others = [one["others"] for one in gpus if one["others"] is not None]
    signs = []
    if _often(cap < LEAST_CAP for cap in caps):
        signs.append(f"the processor was held to {100 * min(caps):.0f}% of its frequency")
    if _often(later > earlier for earlier, later in pairwise(counts)):
        signs.append("the processor throttled for heat")
    if _often(bool(one["throttled"]) for one in gpus):
        signs.append(f"the GPU lowered its clocks ({_causes(gpus)})")
    # After each prompt: before it the GPU may have idled. A single reading may be the one before.
    after = [some[-1]["gpu"]["clock_mhz"] for some in states if len(some) > 1 and "gpu" in some[-1]]
    clocks = [clock for clock in after if clock is not None]
    if _often(clock < LEAST_CLOCK * max(clocks) for clock in clocks):
        signs.append(f"the GPU's clock fell from {max(clocks):.0f} to {min(clocks):.0f} MHz")
    if _often(number > 0 for number in others):
        signs.append(f"{max(others)} other processes computed on the GPU")
    return signs


def _often(found: Iterable[bool]) -> bool:
    """Whether a sign was there in more than `MOST_MOMENTS` of the moments at which it could have been."""
    moments = list(found)
    return sum(moments) > MOST_MOMENTS * len(moments)


def _causes(gpus: Sequence[GpuState]) -> str:
    """The causes of lower clocks, the most frequent first, and the greatest temperature."""
    causes = Counter(cause for one in gpus for cause in one["throttled"])
    warmest = max((one["temperature_c"] for one in gpus if one["temperature_c"] is not None), default=None)
    said = ", ".join(cause for cause, _ in causes.most_common())
    return said if warmest is None else f"{said}; up to {warmest:.0f} °C"


def impossible(summary: Mapping[str, Any]) -> list[str]:
    """The impossible numbers in a summary, in words."""
    v, speedup, tokens = (summary.get(key) for key in ("verify_cost", "speedup_measured", "tokens_per_pass"))
    # A step of the baseline includes the draw of its token, which a pass counts as accepting.
    a_pass = 1.0 if v is None else min(1.0, v + (summary.get("overhead") or 0))
    if speedup is None or tokens is None or speedup * a_pass <= tokens * (1 + SLACK):
        return []
    return [f"a speedup of {speedup:.2f} is impossible with {tokens:.2f} tokens per pass"]


def _waited(prompts: Sequence[PromptRecord]) -> float | None:
    known = [load for prompt in prompts if (load := prompt.get("load")) is not None]
    if len(known) < len(prompts) or not known:
        return None
    waited_s, ran_s = sum(load["waited_s"] for load in known), sum(load["ran_s"] for load in known)
    return waited_s / (waited_s + ran_s)


def _unevenness(steps_s: Sequence[Sequence[float]]) -> float | None:
    """The 90th percentile of the ratio of neighbouring steps, of those that took any time."""
    ratios = [abs(math.log(b / a)) for steps in steps_s for a, b in pairwise(_means(steps))]
    return float(np.exp(np.quantile(ratios, 0.9))) if len(ratios) >= FEWEST_PAIRS else None


def _means(steps_s: Sequence[float]) -> list[float]:
    """Means of as many consecutive steps as last `SHORTEST_S`, without steps of no time; a remainder is left out."""
    means, total, number = [], 0.0, 0
    for step in steps_s:
        if step > 0:
            total, number = total + step, number + 1
        if total >= SHORTEST_S:
            means.append(total / number)
            total, number = 0.0, 0
    return means
