"""Token counts for n-gram drafts: fitted from text once, kept sparse, cached on disk by content.

A bigram table holds only the pairs that occur: 12 bytes each, so that a corpus of 100 million tokens (about 10
million distinct pairs at a 32k vocabulary) takes some 120 MB where a dense table would take 4 GB.

Shapes: V tokens of the vocabulary, P distinct pairs.
"""

import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHUNK = 4_000_000  # tokens counted at a time: bounds the memory of a fit


@dataclass(frozen=True)
class Counts:
    """How often each token occurs, and each pair. Row y of the pairs is `followers[offsets[y]:offsets[y + 1]]`."""

    unigrams_V: NDArray[np.int64]
    offsets_V1: NDArray[np.int64]
    followers_P: NDArray[np.int32]
    pairs_P: NDArray[np.int64]

    def row(self, token: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The tokens seen behind `token` and how often each was."""
        part = slice(self.offsets_V1[token], self.offsets_V1[token + 1])
        return self.followers_P[part], self.pairs_P[part]

    def save(self, file: Path) -> None:
        """Write atomically: a killed fit leaves no half file behind."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
            np.savez(part, **vars(self))
        os.replace(part.name, file)

    @classmethod
    def load(cls, file: Path) -> "Counts":
        with np.load(file, allow_pickle=False) as arrays:
            return cls(**{name: arrays[name] for name in arrays.files})


def fit(sequences: Iterable[Sequence[int]], vocabulary_size: int, start: int) -> Counts:
    """Counts over `sequences`, each taken to follow the token `start`."""
    unigrams = np.zeros(vocabulary_size, np.int64)
    keys, values = np.empty(0, np.int64), np.empty(0, np.int64)
    for before, after in _chunks(sequences, start):
        unigrams += np.bincount(after, minlength=vocabulary_size)
        chunk_keys, chunk_values = np.unique(before * vocabulary_size + after, return_counts=True)
        keys, inverse = np.unique(np.concatenate([keys, chunk_keys]), return_inverse=True)
        values = np.bincount(inverse, np.concatenate([values, chunk_values])).astype(np.int64)
    rows = keys // vocabulary_size
    offsets = np.searchsorted(rows, np.arange(vocabulary_size + 1))
    return Counts(unigrams, offsets, (keys % vocabulary_size).astype(np.int32), values)


def _chunks(sequences: Iterable[Sequence[int]], start: int) -> Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    before: list[int] = []
    after: list[int] = []
    for sequence in sequences:
        before.append(start)
        before.extend(sequence[:-1])
        after.extend(sequence)
        if len(after) >= CHUNK:
            yield np.array(before, np.int64), np.array(after, np.int64)
            before, after = [], []
    if after:
        yield np.array(before, np.int64), np.array(after, np.int64)


def cached(folder: Path, key: str, make: Callable[[], Counts]) -> Counts:
    """The counts kept under `key`, made at the first call. `key` must name the whole content: text and tokenizer.

    A cache that is damaged or cannot be written costs time, not the run.
    """
    file = folder / f"ngram-{hashlib.sha256(key.encode()).hexdigest()[:20]}.npz"
    if file.exists():
        with contextlib.suppress(OSError, ValueError, TypeError, zipfile.BadZipFile):
            return Counts.load(file)
    counts = make()
    with contextlib.suppress(OSError):
        counts.save(file)
    return counts
