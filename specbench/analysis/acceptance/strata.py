"""A run's numbers by kind of prompt, length of context or position in the completion, with intervals over prompts.

Shapes: N prompts, K columns that each of them adds to.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import add as plus
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.acceptance.phases import ANSWER, Phases
from specbench.analysis.costs import rows_of, seconds_of
from specbench.analysis.distinct import groups_of
from specbench.records.run_record import PromptRecord, emitted_and_passes
from specbench.stats import Interval, Scale, over_rows, ratio, ratio_of_ratios

By = Literal["category", "length", "position", "turn", "phase"]
NO_CATEGORY = "none"
SHORTEST = {"length": 32, "position": 16}  # tokens of the first stretch; each later one is twice as long
Columns = NDArray[np.float64]
K = TypeVar("K")
Range = tuple[int, int]  # the first and the last number in it


class Added(NamedTuple):
    """The contribution of one prompt to a stratum."""

    beta: float = 0.0  # sum over the target's tokens, and how many these are
    tokens: float = 0.0
    emitted: float = 0.0  # by the passes
    passes: float = 0.0
    alone_s: float = 0.0  # the target alone, and the tokens it wrote in that time
    alone_tokens: float = 0.0
    ours_s: float = 0.0
    ours_tokens: float = 0.0


class Stratum(NamedTuple):
    """The numbers of one group of prompts or tokens."""

    name: str
    prompts: int
    tokens: int  # of the target alone
    alpha: Interval
    tokens_per_pass: Interval
    speedup: Interval | None  # None if the run gives no speed


def strata(
    prompts: Sequence[PromptRecord],
    by: By,
    with_speed: bool = True,
    phases: Callable[[PromptRecord], Phases] | None = None,
) -> list[Stratum]:
    """The strata of a run in their order: categories by name, lengths, positions and turns from the first.

    A prompt's length is its context's when decoding begins. A position is a token's in the completion, a turn belongs
    to a conversation. `phases` tells a token's phase; without it all are answer.
    """
    rows: dict[tuple[int, str], list[tuple[int, Added]]] = defaultdict(list)  # with the group of equal prompts
    for group, prompt in zip(groups_of(prompts), prompts, strict=True):
        if by == "phase":
            one = phases(prompt) if phases is not None else None
            at = [(lambda _: ANSWER) if one is None else labels.__getitem__ for labels in one or ((), ())]
            for phase, added in added_by(prompt, *at).items():
                rows[int(phase == ANSWER), phase].append((group, added))
            continue
        if by == "position":
            for (first, last), added in added_by_range(prompt, 1, SHORTEST[by]).items():
                rows[first, f"{first}-{last}"].append((group, added))
            continue
        alone, ours = prompt["baseline"], prompt["speculative"]
        added = Added(
            sum(prompt["beta"]), len(prompt["beta"]), *emitted_and_passes(prompt),
            alone.decode_s, len(alone.tokens), ours.decode_s, len(ours.tokens),
        )  # fmt: skip
        if by == "category":
            rows[0, prompt.get("category", NO_CATEGORY)].append((group, added))
        elif by == "turn":
            rows[prompt.get("turn", 1), str(prompt.get("turn", 1))].append((group, added))
        else:
            first, last = range_of(prompt["prompt_tokens"], SHORTEST[by])
            rows[first, f"{first}-{last}"].append((group, added))
    is_served = any("served" in prompt for prompt in prompts)
    return [_stratum(name, rows[order, name], with_speed, is_served) for order, name in sorted(rows)]


def range_of(number: int, shortest: int) -> Range:
    """The range that holds `number`: 1 ... `shortest`, each later range as long as all before it."""
    first, last = 1, shortest
    while number > last:
        first, last = last + 1, 2 * last
    return first, last


def added_by_range(prompt: PromptRecord, first: int, shortest: int) -> dict[Range, Added]:
    """A prompt's contribution to each range of its completion's tokens, which are numbered from `first`.

    A pass counts where its first token stands. In a batch a prompt has its share of the time of each step or pass.
    """

    def place(number: int) -> Range:
        return range_of(number + first, shortest)

    return added_by(prompt, place, place)


def added_by(prompt: PromptRecord, of_alone: Callable[[int], K], of_ours: Callable[[int], K]) -> dict[K, Added]:
    """A prompt's contribution to each place of its two completions' tokens, which are numbered from 0."""
    found: dict[K, Added] = defaultdict(Added)

    def add(place: K, more: Added) -> None:
        found[place] = Added(*map(plus, found[place], more))

    for number, beta in enumerate(prompt["beta"]):
        add(of_alone(number), Added(beta=beta, tokens=1))
    alone, ours = prompt["baseline"], prompt["speculative"]
    for number, (seconds, rows) in enumerate(zip(seconds_of(alone), rows_of(alone), strict=True)):
        add(of_alone(number), Added(alone_s=seconds / rows, alone_tokens=1))
    number = 0
    for one, seconds, rows in zip(ours.passes, seconds_of(ours), rows_of(ours), strict=True):
        emitted = one.emitted
        add(of_ours(number), Added(emitted=emitted, passes=1, ours_s=seconds / rows, ours_tokens=emitted))
        number += emitted
    return found


def _stratum(name: str, rows: Sequence[tuple[int, Added]], with_speed: bool, is_served: bool) -> Stratum:
    columns_NK = np.array([added for _, added in rows], float)
    _, groups = np.unique([group for group, _ in rows], return_inverse=True)
    totals = Added(*columns_NK.sum(0))
    timed = with_speed and min(totals.alone_s, totals.alone_tokens, totals.ours_s, totals.ours_tokens) > 0
    return Stratum(
        name,
        len(columns_NK),
        # For a server, each beta is a verified draft token, and there are none if it counts nothing.
        round(totals.alone_tokens if is_served else totals.tokens),
        _interval(columns_NK, groups, lambda t: ratio(t[..., :2]), "probability"),
        _interval(columns_NK, groups, lambda t: ratio(t[..., 2:4])),
        _interval(columns_NK, groups, lambda t: ratio_of_ratios(t[..., 4:])) if timed else None,
    )


def _interval(
    columns_NK: Columns, groups: NDArray[np.intp], statistic: Callable[[Columns], Columns], scale: Scale = "ratio"
) -> Interval:
    with np.errstate(divide="ignore", invalid="ignore"):
        return over_rows(columns_NK, statistic, scale=scale, groups=groups.tolist())
