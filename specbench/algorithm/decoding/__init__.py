"""Standard decoding and Algorithm 1, for a single sequence and for the rows of a batch."""

from specbench.algorithm.decoding.alone import autoregressive, speculative
from specbench.algorithm.decoding.sequence import Decoding, autoregress, speculate
from specbench.algorithm.decoding.spec import DecodingSpec, Pass, Trace
from specbench.algorithm.decoding.together import together

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
