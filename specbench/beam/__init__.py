"""Beam search with and without a draft (appendix A.4 of the paper).

`search` is one step of a beam search as `transformers` defines it; `speculative` takes several from one target run.
Knows no caches, tasks or statistics.
"""

from specbench.beam.search import Beams, Hypothesis, Reader, Rule
from specbench.beam.speculative import Ahead, BeamTrace, Pass, beam_search

__all__ = ["Ahead", "BeamTrace", "Beams", "Hypothesis", "Pass", "Reader", "Rule", "beam_search"]
