"""A suffix array over tokens: the occurrences of a token sequence in a corpus, and the tokens that followed.

The array is built by pydivsufsort (bindings to libdivsufsort), which is imported only then. Tokens
are held as big-endian bytes, so that slices of bytes compare as runs of tokens do, and one binary search finds a run
of any length.

Memory and disk: 6 bytes per token each (8 if the vocabulary has more than 65,535 tokens). Building takes about 30 (60),
because libdivsufsort sorts bytes, and only every second (fourth) byte begins a token.

Shapes: N tokens of the corpus, the separators included; B bytes of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.methods.from_text import Arrays, Corpus

MOST_LOOKED_AT = 1024  # places that the most frequent continuation is counted over


def build(corpus: Corpus, vocabulary_size: int) -> Arrays:
    """The arrays of a `SuffixIndex` over `corpus`. `vocabulary_size`, which is no token, ends each of its sequences."""
    from pydivsufsort import divsufsort

    ends = np.append(np.flatnonzero(corpus.begins_N)[1:], len(corpus.tokens_N))
    dtype = _dtype(vocabulary_size)
    tokens_N = np.insert(corpus.tokens_N, ends, vocabulary_size).astype(dtype.newbyteorder("="))
    suffixes_N = divsufsort(tokens_N).astype(np.int32)
    return {"text_B": tokens_N.astype(dtype).view(np.uint8), "suffixes_N": suffixes_N}


def _dtype(vocabulary_size: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype(">u2" if vocabulary_size < 2**16 else ">u4")


class SuffixIndex:
    """The places of every run of tokens of a corpus."""

    def __init__(self, arrays: Arrays, vocabulary_size: int) -> None:
        self.end = vocabulary_size  # follows each text of the corpus
        self._tokens_N: NDArray[np.unsignedinteger] = arrays["text_B"].view(_dtype(vocabulary_size))
        self._suffixes_N: NDArray[np.int32] = arrays["suffixes_N"]
        self._width = self._tokens_N.itemsize
        self._text: bytes = arrays["text_B"].tobytes()
        self._suffixes = memoryview(self._suffixes_N)

    def follower(self, context: Sequence[int], longest: int, known: int = 0) -> tuple[int, int]:
        """The token that followed the longest run found of the last `longest` tokens, and that run's length.

        The last tokens are the last of `context`. Among several followers it is the most frequent, then the smallest
        id; (`end`, 0) if not even the last token is found. A run of `known` tokens is known to be found. At most
        MOST_LOOKED_AT places are counted, evenly over all. They are sorted by the tokens that follow, so that shares
        are preserved.
        """
        places, length = self.longest_run(context, longest, known)
        if length == 0:
            return self.end, 0
        tokens, times = self.counted(places, length)
        return int(tokens[times.argmax()]), length

    def longest_run(self, context: Sequence[int], longest: int, known: int = 0) -> tuple[range, int]:
        """The longest run found of the last `longest` tokens of `context`: its suffixes, and its length.

        An empty range and 0 if not even a run of `known` (at least 1) tokens is found.
        """
        longer = range(known + 1, min(longest, len(context)) + 1)  # what is not found makes every longer run not found
        found: dict[int, range] = {}

        def is_missing(length: int) -> bool:
            found[length] = self._places(context[len(context) - length :])
            return not found[length]

        length = known + bisect_left(longer, True, key=is_missing)
        if length and length not in found:
            is_missing(length)
        return (found[length], length) if length and found[length] else (range(0), 0)

    def longest(self, context: Sequence[int], longest: int) -> int:
        """The length of the longest run found of the last `longest` tokens of `context`."""
        return self.longest_run(context, longest)[1]

    def counted(self, places: range, length: int) -> tuple[NDArray[np.unsignedinteger], NDArray[np.intp]]:
        """The tokens that followed a run of `length` tokens at `places`, the smallest first, and how often each did."""
        followers = self._tokens_N[self._followers(places, length, MOST_LOOKED_AT)]
        tokens, times = np.unique(followers, return_counts=True)
        return tokens, times * _step(places, MOST_LOOKED_AT)

    def places(self, context: Sequence[int], longest: int, most: int) -> list[list[int]]:
        """Indices in `tokens` of the followers of the last `longest` tokens of `context`, then of shorter runs.

        Runs go down to one token. Each has up to `most` places, evenly over all, without places of a longer run.
        """
        return list(self.places_by_length(context, longest, most).values())

    def places_by_length(self, context: Sequence[int], longest: int, most: int) -> dict[int, list[int]]:
        """`places`, by the length of the run, the longest first."""
        found: dict[int, list[int]] = {}
        seen: set[int] = set()
        for length in range(min(longest, len(context)), 0, -1):
            run = self._places(context[len(context) - length :])
            if run:
                followers = self._followers(run, length, most).tolist()
                found[length] = sorted(place for place in followers if place not in seen)
                seen.update(found[length])
        return found

    @property
    def tokens(self) -> NDArray[np.unsignedinteger]:
        """The corpus; `end` follows each of its texts."""
        return self._tokens_N

    def _followers(self, places: range, length: int, most: int) -> NDArray[np.int32]:
        """Where the followers of a run of `length` tokens stand, of up to `most` of its `places`."""
        step = _step(places, most)
        found: NDArray[np.int32] = self._suffixes_N[places.start : places.stop : step] + length
        return found

    def _places(self, run: Sequence[int]) -> range:
        """The range of sorted suffixes that begin with `run`."""
        sought = np.array(run, self._tokens_N.dtype).tobytes()
        text, suffixes, width, length = self._text, self._suffixes, self._width, len(sought)

        def beginning(place: int) -> bytes:
            start = suffixes[place] * width
            return text[start : start + length]

        count = len(suffixes)
        first = bisect_left(range(count), sought, key=beginning)
        if first == count or beginning(first) != sought:
            return range(0)
        further = 1  # most runs have few places, so that the end is near
        while first + further < count and beginning(first + further) == sought:
            further *= 2
        low, high = first + further // 2, min(first + further, count)
        return range(first, bisect_right(range(count), sought, lo=low, hi=high, key=beginning))


def _step(places: range, most: int) -> int:
    """The stride through `places` that visits at most `most` of them."""
    return -(-len(places) // most)


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
        """The token that followed the longest run found in either part, counted over both, and that run's length."""
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

    def longest(self, context: Sequence[int], longest: int) -> int:
        """The length of the longest run found in either part."""
        return max(part.longest(context, longest) for part in self._parts)

    def places(self, context: Sequence[int], longest: int, most: int) -> list[list[int]]:
        """Where the followers stand (`SuffixIndex.places`); the texts that were added stand after the corpus."""
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


class Joined:
    """Arrays of tokens end to end, none of them copied."""

    def __init__(self, parts: Sequence[NDArray[np.unsignedinteger]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __getitem__(self, place: int) -> int:
        for part in self._parts:
            if place < len(part):
                return int(part[place])
            place -= len(part)
        raise IndexError(place)
