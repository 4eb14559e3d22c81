"""A corpus that grows by decoded completions, as REST's datastores do (He et al. 2023, section 3.1).

The corpus keeps its suffix array. The texts have a small one of their own, which is sorted again whenever texts are
added, between prompts; a run of tokens is looked for in both.

Shapes: N tokens of the corpus.
"""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from specbench.drafts.corpus import Corpus
from specbench.drafts.suffixes import SuffixIndex, build


class GrowingStore:
    """`index` and the completions added since, with the interface of a `SuffixIndex`."""

    def __init__(self, index: SuffixIndex) -> None:
        self.index, self.end = index, index.end
        self.grown = 0  # tokens of the texts that were added
        self._texts: list[list[int]] = []
        self._parts = [index]

    def add(self, texts: Sequence[Sequence[int]], decoded: int) -> None:
        """Add `texts`, which hold `decoded` tokens that were decoded, and sort all that were added."""
        self._texts += map(list, texts)
        self.grown += decoded
        tokens = [token for text in self._texts for token in text]
        begins_N = np.zeros(len(tokens), np.bool_)
        begins_N[np.cumsum([0, *map(len, self._texts[:-1])])] = True
        added = SuffixIndex(build(Corpus(np.array(tokens, np.int32), begins_N), self.end), self.end)
        self._parts = [self.index, added]

    def clear(self) -> None:
        """Remove all added texts."""
        self._texts, self._parts, self.grown = [], [self.index], 0

    def follower(self, context: Sequence[int], longest: int, known: int = 0) -> tuple[int, int]:
        """As `SuffixIndex.follower`: of the longest run found in either, counted over both."""
        found = [(part, *part.longest_run(context, longest, known)) for part in self._parts]
        length = max(of_part for _, _, of_part in found)
        if length == 0:
            return self.end, 0
        counts: dict[int, int] = {}
        for part, places, of_part in found:
            if of_part == length:
                for token, times in zip(*(each.tolist() for each in part.counted(places, length)), strict=True):
                    counts[token] = counts.get(token, 0) + times
        return min(counts, key=lambda token: (-counts[token], token)), length

    def places(self, context: Sequence[int], longest: int, most: int) -> list[list[int]]:
        """As `SuffixIndex.places`; the texts that were added stand after the corpus."""
        merged: dict[int, list[int]] = {}
        first = 0
        for part in self._parts:
            for length, places in part.places_by_length(context, longest, most).items():
                merged.setdefault(length, []).extend(first + place for place in places)
            first += len(part.tokens)
        return [merged[length] for length in sorted(merged, reverse=True)]

    @property
    def tokens(self) -> "Joined":
        """The corpus, then the texts that were added; `end` follows each text."""
        return Joined([part.tokens for part in self._parts])


class Joined(Sequence[int]):
    """Arrays of tokens end to end, none of them copied."""

    def __init__(self, parts: Sequence[NDArray[np.unsignedinteger]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        for part in self._parts:
            if place < len(part):
                return int(part[place])
            place -= len(part)
        raise IndexError(place)
