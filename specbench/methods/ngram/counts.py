"""Token counts of any order, sparse: only the n-grams that occur are held.

The n-grams form a tree. Its first level are the tokens of the vocabulary; the children of an n-gram, in order of
token, are the tokens seen after it. A level is three arrays: 8 bytes for each of its n-grams, and 8 for each of the
level above it. 100 million tokens of text at a vocabulary of 32k hold about 10 million distinct pairs and 45 million
distinct triples: 80 MB as bigram counts, 520 MB as trigram counts, where dense tables would take 4 GB and 130 TB.

Fitting takes 9 bytes per token of the text, about 70 per n-gram of its largest level and 50 for each of the CHUNK
tokens that are counted at a time: about 4 GB for those triples. (3 million tokens with 0.9 million distinct pairs and
1.9 million distinct triples: 0.2 GB, and 30 MB as counts.)

Shapes: V tokens of the vocabulary, N tokens of the text, P n-grams of a level, A n-grams of the level above.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.methods.from_text import Arrays, Corpus

CHUNK = 4_000_000  # tokens

Keys = NDArray[np.int64]
Run = tuple[Keys, NDArray[np.uint32]]  # distinct keys in order, and how often each occurs
Row = tuple[NDArray[np.int32], NDArray[np.uint32]]


@dataclass(frozen=True)
class Level:
    """The n-grams of one length.

    Those that extend n-gram i of the level above are `tokens_P[offsets_A1[i]:offsets_A1[i + 1]]`, counted `times_P`
    each.
    """

    offsets_A1: NDArray[np.int64]
    tokens_P: NDArray[np.int32]
    times_P: NDArray[np.uint32]


@dataclass(frozen=True)
class Counts:
    """How often each token occurs, and each n-gram of 2, 3, ... tokens (`levels`)."""

    unigrams_V: NDArray[np.int64]
    levels: tuple[Level, ...]

    @property
    def order(self) -> int:
        return 1 + len(self.levels)

    def row(self, context: Sequence[int]) -> Row | None:
        """The tokens counted after `context` (at most `order` - 1 tokens) and their counts; None if there are none."""
        place = context[0]
        for level, token in zip(self.levels, context[1:], strict=False):
            first, end = level.offsets_A1[place : place + 2]
            place = int(first + np.searchsorted(level.tokens_P[first:end], np.int32(token)))
            if place == end or level.tokens_P[place] != token:
                return None
        level = self.levels[len(context) - 1]
        first, end = level.offsets_A1[place : place + 2]
        return (level.tokens_P[first:end], level.times_P[first:end]) if end > first else None

    def arrays(self) -> Arrays:
        named = {f"{name}_{n}": array for n, one in enumerate(self.levels, 2) for name, array in vars(one).items()}
        return {"unigrams_V": self.unigrams_V} | named

    @classmethod
    def of(cls, arrays: Arrays) -> "Counts":
        """The counts that `arrays` were made from."""
        names = list(Level.__dataclass_fields__)
        levels = [Level(*(arrays[f"{name}_{n}"] for name in names)) for n in range(2, 2 + len(arrays) // len(names))]
        return cls(arrays["unigrams_V"], tuple(levels))


def fit(corpus: Corpus, vocabulary_size: int, order: int, say: Callable[[str], None] = lambda _: None) -> Counts:
    """Counts of n-grams of up to `order` tokens (at least 2) that lie within one sequence of `corpus`.

    The first token of each sequence is a context, but is not itself counted. `say` receives the name of each level.
    """
    unigrams_V = np.zeros(vocabulary_size, np.int64)
    for part in _parts(corpus):
        unigrams_V += np.bincount(corpus.tokens_N[part][~corpus.begins_N[part]], minlength=vocabulary_size)
    ended_N = corpus.tokens_N.copy()  # which n-gram of the level above ends at each token; -1 for none
    above, levels = vocabulary_size, []
    for n in range(2, order + 1):
        say(f"counting {n}-grams of {len(ended_N):,} tokens")
        keys_P, times_P = _merged(_counted(keys[keys >= 0]) for _, keys in _keys(corpus, ended_N, vocabulary_size))
        if n < order:
            for part, keys in _keys(corpus, ended_N, vocabulary_size):
                ended_N[part] = np.where(keys < 0, -1, np.searchsorted(keys_P, keys))
        offsets = np.searchsorted(keys_P, np.arange(above + 1) * vocabulary_size)
        above = len(keys_P)
        levels.append(Level(offsets, (keys_P % vocabulary_size).astype(np.int32), times_P))
    return Counts(unigrams_V, tuple(levels))


def _parts(corpus: Corpus) -> Iterator[slice]:
    for start in range(0, len(corpus.tokens_N), CHUNK):
        yield slice(start, min(start + CHUNK, len(corpus.tokens_N)))


def _keys(corpus: Corpus, ended_N: NDArray[np.int32], vocabulary_size: int) -> Iterator[tuple[slice, Keys]]:
    """For each token of a part a key of the n-gram that ends there: the n-gram before it, then the token.

    -1 if that would begin before the sequence does. The yielded array may be overwritten in `ended_N`.
    """
    last = -1  # what ended just before the part
    for part in _parts(corpus):
        before = np.concatenate([[last], ended_N[part][:-1]]).astype(np.int64)
        last = int(ended_N[part][-1])
        yield part, np.where((before < 0) | corpus.begins_N[part], -1, before * vocabulary_size + corpus.tokens_N[part])


def _counted(keys: Keys) -> Run:
    distinct, times = np.unique(keys, return_counts=True)
    return distinct, times.astype(np.uint32)


def _merged(runs: Iterable[Run]) -> Run:
    """The sum of all `runs`.

    Two neighbours of similar size are merged at once, so that few exist at a time and each key is moved some log2(runs)
    times.
    """
    held: list[Run] = []
    for run in runs:
        held.append(run)
        while len(held) > 1 and len(held[-2][0]) < 2 * len(held[-1][0]):
            held.append(_sum(held.pop(), held.pop()))
    while len(held) > 1:
        held.append(_sum(held.pop(), held.pop()))
    return held[0] if held else (np.empty(0, np.int64), np.empty(0, np.uint32))


def _sum(one: Run, other: Run) -> Run:
    keys = np.concatenate([one[0], other[0]])
    order = keys.argsort(kind="stable")  # linear: both runs are sorted
    keys, times = keys[order], np.concatenate([one[1], other[1]])[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.add.reduceat(times, first, dtype=np.uint32) if len(first) else times
