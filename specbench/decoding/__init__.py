"""Decoding: `autoregressive` (standard decoding) and `speculative` (Algorithm 1).

`sequence` implements each once, as a generator that yields the reads it needs. A driver answers the reads of a single
sequence (`alone`), or gathers the reads of all rows of a batch (`together`). The result is a `Trace`: the tokens and
the time of each part. Nothing here depends on tasks, strings or statistics.
"""

from specbench.decoding.alone import autoregressive, speculative
from specbench.decoding.sequence import Decoding, autoregress, speculate
from specbench.decoding.spec import DecodingSpec
from specbench.decoding.together import together
from specbench.decoding.trace import Pass, Trace

__all__ = [
    "Decoding",
    "DecodingSpec",
    "Pass",
    "Trace",
    "autoregress",
    "autoregressive",
    "speculate",
    "speculative",
    "together",
]
