"""Decoding: `autoregressive`, and `speculative`, which is Algorithm 1 and nothing else.

`sequence` writes both down once, as generators that yield the reads that they need; a driver answers those of one
sequence at a time (`alone`). All give a `Trace`: the tokens and where the time went. None knows tasks, text or
statistics.
"""

from specbench.decoding.alone import autoregressive, speculative
from specbench.decoding.spec import DecodingSpec
from specbench.decoding.trace import Pass, Trace

__all__ = ["DecodingSpec", "Pass", "Trace", "autoregressive", "speculative"]
