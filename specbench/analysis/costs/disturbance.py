"""Detect that another process used the machine while a run was timed. c, v and speedups are then invalid; alpha is not.

Three signs, each enough:

- The process waited for a core: more than `MOST_WAITED` of the time that its threads were ready to run, over all
  prompts, if the system reports it (`run.core_time`).
- Neighbouring steps of the target alone differ: in more than one of ten pairs by more than `MOST_UNEVEN` times. Only
  steps of one completion are compared with each other, without the first, so that neither longer prompts nor a growing
  cache count. This is all that there is for records without load.
- The speedup is impossible: speculative decoding cannot gain more than its tokens per pass (over v, where v < 1).
  v below 1 is no sign: kernels for a single row may be slower than those for several. `SLACK` leaves room for
  rounding.

Thresholds and error rates are from runs of 20 prompts of the shipped pair on 2 cores (docs/disturbed.md).

Plain numbers only.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from specbench.analysis.costs.probe import Round
from specbench.records.schema import Disturbed, PromptRecord

MOST_WAITED = 0.05
MOST_UNEVEN = 1.5
FEWEST_PAIRS = 20
SLACK = 0.05


@dataclass(frozen=True)
class Disturbance:
    """The signs of another process on the machine.

    Attributes:
        waited: share of the time for which the process waited for a core; None where it is not known.
        unevenness: the 90th percentile of the ratio of neighbouring steps, longer over shorter; None with fewer than
            `FEWEST_PAIRS` pairs.
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
        """Its columns in a record's summary."""
        return {
            "disturbed": bool(self.signs),
            "disturbed_by": self.all_signs,
            "waited": self.waited,
            "unevenness": self.unevenness,
        }


def disturbance(prompts: Sequence[PromptRecord], summary: Mapping[str, Any]) -> Disturbance:
    """The signs in raw prompts, and in the `summary` that was made of them."""
    found = of_steps(_waited(prompts), [prompt["baseline"]["steps_s"][1:] for prompt in prompts])
    return replace(found, signs=found.signs + impossible(summary))


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
    ratios = [abs(math.log(b / a)) for steps in steps_s for a, b in pairwise(steps) if a > 0 and b > 0]
    return float(np.exp(np.quantile(ratios, 0.9))) if len(ratios) >= FEWEST_PAIRS else None


# How long this process waited for a core, if the system reports it.
#
# Linux counts for each thread the time on a core and the time that it was ready to run and had none
# (/proc/PID/task/TID/schedstat, in nanoseconds). Elsewhere nothing is known. Reading takes about 0.1 ms a thread, so it
# is done once before and once after a prompt.


T = TypeVar("T")
TRIES = 3  # of a timed piece of work that waited for a core
TASKS = Path("/proc/self/task")
NANOSECONDS = 1e-9


class CoreTime(NamedTuple):
    """Seconds of one thread, or of all: on a core, and ready to run without a core."""

    ran_s: float
    waited_s: float

    @property
    def waited(self) -> float:
        """Share of the time for which it waited for a core."""
        return self.waited_s / (self.waited_s + self.ran_s)


Threads = dict[str, CoreTime]


def core_times(tasks: Path = TASKS) -> Threads:
    """By thread, since it began; empty where the system does not tell."""
    found = {}
    for task in tasks.iterdir() if tasks.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):  # no such counts; or a thread that ended just now
            ran, waited, _ = (task / "schedstat").read_text().split()
            found[task.name] = CoreTime(int(ran) * NANOSECONDS, int(waited) * NANOSECONDS)
    return found


def between(before: Threads, after: Threads) -> CoreTime | None:
    """All threads that live at the end, from `before` to `after`; None where nothing is known of either."""
    if not before or not after:
        return None
    spent = [
        (now.ran_s - then.ran_s, now.waited_s - then.waited_s)
        for thread, now in after.items()
        for then in [before.get(thread, CoreTime(0.0, 0.0))]
    ]
    ran_s, waited_s = (sum(column) for column in zip(*spent, strict=True))
    return CoreTime(ran_s, waited_s) if ran_s > 0 else None  # a kernel without these counts says 0


def waited_share(before: Threads) -> float | None:
    """Share of the time since `before` for which this process waited for a core; None where it is not known."""
    load = between(before, core_times())
    return None if load is None else load.waited


def least_disturbed(work: Callable[[], T], tries: int = TRIES) -> tuple[T, float | None]:
    """The result of `work`, which times something, and the share of its time for which it waited for a core.

    It is repeated while it waited for more than `MOST_WAITED` of its time, up to `tries` times in all; the result is
    that of the least disturbed time.
    """
    found = list[tuple[T, float]]()
    for _ in range(tries):
        before = core_times()
        result = work()
        waited = waited_share(before)
        if waited is None or waited <= MOST_WAITED:
            return result, waited
        found.append((result, waited))
    return min(found, key=lambda one: one[1])


def undisturbed(work: Callable[[], Round]) -> Round:
    """A timed round, repeated while the process waits for a core (`least_disturbed`)."""
    found, waited = least_disturbed(work)
    return replace(found, waited=waited)


def disturbed_by(rounds: Sequence[Round], waited: float | None = None) -> str | None:
    """The signs, in words, that other work disturbed the timed rounds; None without a sign.

    `waited` is the share of the whole measurement for which the process waited for a core; None: that of the rounds.
    """
    known = [one.waited for one in rounds if one.waited is not None]
    if waited is None and known:
        waited = sum(known) / len(known)
    return of_steps(waited, [one.steps_s for one in rounds]).all_signs
