"""Beam search with and without a draft (appendix A.4 of the paper).

`search` is one step of a beam search as `transformers` defines it; `speculative` takes several from one target run.
Neither depends on caches, tasks or statistics.
"""

from specbench.beam.search import Beams, BeamSettings, Hypothesis, HypothesisReader
from specbench.beam.speculative import BeamDraft, BeamPass, BeamTrace, beam_search

__all__ = [
    "BeamDraft",
    "BeamPass",
    "BeamSettings",
    "BeamTrace",
    "Beams",
    "Hypothesis",
    "HypothesisReader",
    "beam_search",
]
