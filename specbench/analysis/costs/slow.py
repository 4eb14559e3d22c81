"""Steps and passes that took much longer than the usual one of their kind.

Their share tells two runs of one config apart when nothing else does: a processor that shares its cache or changes
its frequency stretches some passes, and the mean of all with them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from specbench.analysis.costs import rows_of, seconds_of
from specbench.records.numbers import Slow
from specbench.records.run_record import PromptRecord

OVER = 1.3  # medians of its kind, above which a step or a pass is slow
FEWEST = 8  # of a kind, from which its median says what is usual
UNUSUAL = 0.15  # share of slow steps or passes that is worth a word
APART = 0.1  # a difference of two shares that is worth a word


def slow(prompts: Sequence[PromptRecord]) -> Slow:
    """The shares of slow steps of the target alone, and of slow passes; a key is absent if there are too few."""
    found: Slow = {}
    steps = [
        (rows, seconds)
        for prompt in prompts
        for rows, seconds in zip(rows_of(prompt["baseline"]), seconds_of(prompt["baseline"]), strict=True)
    ]
    ours = [prompt["speculative"] for prompt in prompts]
    passes = [
        ((rows, one.drafted), seconds)
        for trace in ours
        for rows, one, seconds in zip(rows_of(trace), trace.passes, seconds_of(trace), strict=True)
    ]
    if (share := _share(steps)) is not None:
        found["slow_steps"] = share
    if (share := _share(passes)) is not None:
        found["slow_passes"] = share
    return found


def differ(one: Slow, other: Slow) -> list[str]:
    """Shares in which two runs differ by more than `APART`, in words; runs of one config on one machine should not."""
    names: tuple[tuple[Literal["slow_steps", "slow_passes"], str], ...] = (
        ("slow_passes", "passes"), ("slow_steps", "the target's own steps"),
    )  # fmt: skip
    return [
        f"{one[name]:.0%} of {said} of A and {other[name]:.0%} of B took more than {OVER:g} times their median"
        for name, said in names
        if name in one and name in other and abs(one[name] - other[name]) > APART
    ]


def _share(timed: Iterable[tuple[object, float]]) -> float | None:
    """The share of timings that took more than `OVER` medians of their kind; `timed` has each with its kind."""
    kinds = defaultdict[object, list[float]](list)
    for kind, seconds in timed:
        kinds[kind].append(seconds)
    usual = [some for some in kinds.values() if len(some) >= FEWEST]
    count = sum(map(len, usual))
    return sum(sum(one > OVER * median(some) for one in some) for some in usual) / count if count else None
