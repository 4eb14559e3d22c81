"""Decoding: `autoregressive`, and `speculative`, which is Algorithm 1 and nothing else.

`sequence` writes both down once, as generators that yield the reads that they need; a driver answers those of one
sequence at a time (`alone`), or gathers those of the rows of a batch (`together`). All give a `Trace`: the tokens and
where the time went. None knows tasks, text or statistics.
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
