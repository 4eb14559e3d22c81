"""A run's numbers by kind of prompt, length of context or position in the completion, with intervals over prompts.

Shapes: N prompts, K columns that each of them adds to.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.costs import rows_of
from specbench.records.documents import RangeShare, Share
from specbench.records.schema import PromptRecord
from specbench.stats import Interval, bootstrap, ratio

By = Literal["category", "length", "position"]
NO_CATEGORY = "none"
SHORTEST = {"length": 32, "position": 16}  # tokens of the first stretch; each later one is twice as long
RESAMPLES, SEED = 1000, 0
Columns = NDArray[np.float64]


class Added(NamedTuple):
    """What one prompt adds to a stratum."""

    beta: float  # sum over the target's tokens, and how many these are
    tokens: float
    emitted: float  # by the passes
    passes: float
    alone_s: float  # the target alone, and the tokens it wrote in that time
    alone_tokens: float
    ours_s: float
    ours_tokens: float


class Stratum(NamedTuple):
    """The numbers of one group of prompts or tokens."""

    name: str
    prompts: int
    tokens: int  # of the target alone
    alpha: Interval
    tokens_per_pass: Interval
    speedup: Interval | None  # None where the run gives no speed


def strata(prompts: Sequence[PromptRecord], by: By, with_speed: bool = True) -> list[Stratum]:
    """The strata of a run in their order: categories by name, lengths and positions from the shortest.

    A prompt's length is that of its context when decoding begins. A position is that of a token in the completion; a
    pass counts where its first token stands. In a batch a prompt has its share of the time of each step or pass.
    """
    rows: dict[tuple[int, str], list[Added]] = defaultdict(list)
    for prompt in prompts:
        for key, added in _of_prompt(prompt, by):
            rows[key].append(added)
    return [_stratum(name, np.array(rows[order, name], float), with_speed) for order, name in sorted(rows)]


def _of_prompt(prompt: PromptRecord, by: By) -> Iterator[tuple[tuple[int, str], Added]]:
    if by == "position":
        yield from _stretches(prompt)
        return
    alone, ours = prompt["baseline"], prompt["speculative"]
    key = (0, prompt.get("category", NO_CATEGORY)) if by == "category" else _bin(prompt["prompt_tokens"], by)
    yield key, Added(
        sum(prompt["beta"]), len(prompt["beta"]), sum(one["emitted"] for one in ours["passes"]), len(ours["passes"]),
        alone["decode_s"], len(alone["tokens"]), ours["decode_s"], len(ours["tokens"]),
    )  # fmt: skip


def _stretches(prompt: PromptRecord) -> Iterator[tuple[tuple[int, str], Added]]:
    found: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0] * len(Added._fields))
    for place, beta in enumerate(prompt["beta"]):
        columns = found[_bin(place + 1, "position")]
        columns[0] += beta
        columns[1] += 1
    for place, (seconds, rows) in enumerate(
        zip(prompt["baseline"]["steps_s"], rows_of(prompt["baseline"]), strict=True)
    ):
        columns = found[_bin(place + 1, "position")]
        columns[4] += seconds / rows
        columns[5] += 1
    place = 0
    for one, rows in zip(prompt["speculative"]["passes"], rows_of(prompt["speculative"]), strict=True):
        columns = found[_bin(place + 1, "position")]
        seconds = (one["draft_s"] + one["verify_s"] + one["accept_s"]) / rows
        for column, more in ((2, one["emitted"]), (3, 1), (6, seconds), (7, one["emitted"])):
            columns[column] += more
        place += one["emitted"]
    yield from ((key, Added(*columns)) for key, columns in found.items())


def _bin(number: int, by: Literal["length", "position"]) -> tuple[int, str]:
    """The stretch that holds `number`, by its first number and its name."""
    first, last = 1, SHORTEST[by]
    while number > last:
        first, last = last + 1, 2 * last
    return first, f"{first}-{last}"


def _stratum(name: str, columns_NK: Columns, with_speed: bool) -> Stratum:
    totals = Added(*columns_NK.sum(0))
    timed = with_speed and min(totals.alone_s, totals.alone_tokens, totals.ours_s, totals.ours_tokens) > 0
    return Stratum(
        name,
        len(columns_NK),
        round(totals.tokens),
        _interval(columns_NK, lambda t: t[..., 0] / t[..., 1]),
        _interval(columns_NK, lambda t: t[..., 2] / t[..., 3]),
        _interval(columns_NK, lambda t: t[..., 4] / t[..., 5] / (t[..., 6] / t[..., 7])) if timed else None,
    )


def _interval(columns_NK: Columns, statistic: Callable[[Columns], Columns]) -> Interval:
    with np.errstate(divide="ignore", invalid="ignore"):
        return bootstrap(columns_NK, statistic, RESAMPLES, SEED)


FIRST = 4  # tokens of the first range
Sums = dict[int, tuple[float, int]]  # by range: a total, and the tokens that it is over


def range_of(number: int) -> int:
    """Which range a number from 1 on lies in: 1-4 is 0, 5-8 is 1, 9-16 is 2, ..."""
    return max(0, int(np.ceil(np.log2(number / FIRST))))


def bounds(index: int) -> tuple[int, int]:
    """The first and the last number of a range."""
    last = FIRST * 2**index
    return (1 if index == 0 else last // 2 + 1), last


def summed(numbers: Iterator[int], values: Sequence[float]) -> Sums:
    """The values of one prompt's tokens, summed by the range of each token's number."""
    found: Sums = {}
    for number, value in zip(numbers, values, strict=False):
        total, count = found.get(range_of(number), (0.0, 0))
        found[range_of(number)] = (total + value, count + 1)
    return found


def by_range(prompts: Sequence[Mapping[int, tuple[float, int]]]) -> list[RangeShare]:
    """A share for each range that occurs, from the sums of each prompt."""
    made: list[RangeShare] = []
    for index in sorted({index for prompt in prompts for index in prompt}):
        first, last = bounds(index)
        made.append({"first": first, "last": last, **share([prompt[index] for prompt in prompts if index in prompt])})
    return made


def share(sums: Sequence[tuple[float, float]]) -> Share:
    """A ratio of totals over prompts, with its interval."""
    found = bootstrap(sums, ratio, RESAMPLES, 0)
    return {**found.to_json(), "prompts": len(sums), "tokens": int(sum(count for _, count in sums))}
