"""Shares of tokens by a number that a token has (its place, the length of its context), in ranges that double."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from specbench.records.profile import RangeShare, Share
from specbench.stats import bootstrap, ratio

RESAMPLES = 1000
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
