"""Training text in memory: token sequences end to end in one array, four bytes a token.

Shapes: N tokens, the one before each sequence included.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Corpus:
    """Sequences end to end, each after one `before` token; `begins_N` marks these."""

    tokens_N: NDArray[np.int32]
    begins_N: NDArray[np.bool_]


def gather(sequences: Iterable[Sequence[int]], before: int) -> Corpus:
    """Collect all `sequences` in one array, each preceded by a token `before`."""
    tokens, begins = array("i"), array("q")
    for sequence in sequences:
        begins.append(len(tokens))
        tokens.append(before)
        tokens.extend(sequence)
    tokens_N = np.frombuffer(tokens, np.int32) if tokens else np.empty(0, np.int32)
    begins_N = np.zeros(len(tokens_N), np.bool_)
    begins_N[np.array(begins, np.int64)] = True
    return Corpus(tokens_N, begins_N)
