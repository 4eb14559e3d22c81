"""Tokens that drafts without cost propose along the same completions: each is accepted if it is the token.

A unigram and a bigram are counted on the completions of the other prompts and on earlier tokens of the same one; a
lookup copies the tokens after the longest earlier match in the same completion.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LONGEST = 4  # tokens of a match


@dataclass(frozen=True)
class Cheap:
    """Whether a unigram, a bigram and a lookup name the token: for each text, for each token."""

    unigram: list[list[bool]]
    bigram: list[list[bool]]
    lookup: list[list[bool]]


def cheap(texts: Sequence[Sequence[int]], groups: Sequence[int]) -> Cheap:
    """Tokens that cheap drafts propose along `texts`; texts of one group have equal prompts: none teaches another."""
    singles, pairs = Counter[int](), Counter[tuple[int, int]]()
    by_group: dict[int, tuple[Counter[int], Counter[tuple[int, int]]]] = defaultdict(lambda: (Counter(), Counter()))
    for text, group in zip(texts, groups, strict=True):
        own, following = Counter(text), Counter(pairwise(text))
        singles.update(own)
        pairs.update(following)
        by_group[group][0].update(own)
        by_group[group][1].update(following)
    found = Cheap([], [], [])
    for text, group in zip(texts, groups, strict=True):
        known, after = Counter(singles), Counter(pairs)
        known.subtract(by_group[group][0])
        after.subtract(by_group[group][1])
        unigram, bigram = _counted(text, +known, +after)  # without those that only its own group has
        found.unigram.append(unigram)
        found.bigram.append(bigram)
        found.lookup.append(lookup(text))
    return found


def _counted(
    text: Sequence[int], singles: Counter[int], pairs: Counter[tuple[int, int]]
) -> tuple[list[bool], list[bool]]:
    """Whether the commonest token, and the commonest after the last, is each token of `text`; both learn as they go."""
    most = max(singles, key=singles.__getitem__, default=None)
    follows: dict[int, int] = {}  # the commonest token after each
    for (before, token), count in pairs.items():
        if before not in follows or count > pairs[before, follows[before]]:
            follows[before] = token
    unigram, bigram = [], []
    last: int | None = None
    for token in text:
        unigram.append(token == most)
        bigram.append(token == (most if last is None else follows.get(last, most)))
        singles[token] += 1
        if most is None or singles[token] > singles[most]:
            most = token
        if last is not None:
            pairs[last, token] += 1
            if last not in follows or pairs[last, token] > pairs[last, follows[last]]:
                follows[last] = token
        last = token
    return unigram, bigram


def lookup(text: Sequence[int]) -> list[bool]:
    """Whether each token is the one that followed the last occurrence of the longest match of the tokens before it."""
    last: dict[tuple[int, ...], int] = {}  # where what followed a match stands
    found = []
    for place, token in enumerate(text):
        matches = (tuple(text[place - width : place]) for width in range(min(LONGEST, place), 0, -1))
        at = next((last[match] for match in matches if match in last), None)
        found.append(at is not None and text[at] == token)
        for width in range(1, min(LONGEST, place) + 1):
            last[tuple(text[place - width : place])] = place
    return found
