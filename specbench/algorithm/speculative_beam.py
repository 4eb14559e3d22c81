"""Speculative beam search: several steps of the target's own beam search from one run of the target.

Appendix A.4 of the paper: the draft runs a beam search of its own, of width u, for gamma steps; the target scores all
of its hypotheses at once; a step is accepted while the target's w beams are among the draft's u. Steps are computed
from only the target's rows, so the result is the target's own for any draft.
"""

from dataclasses import dataclass

from specbench.algorithm.beam import Beams, BeamSettings, Hypothesis, HypothesisReader, begin, continuations, step
from specbench.engine.eager.model import TokenSequence


@dataclass(frozen=True)
class BeamDraft:
    """A model that has begun on the same prompt, its number of beams and its steps in a pass."""

    model: HypothesisReader
    u: int
    gamma: int


@dataclass(frozen=True)
class BeamPass:
    """One run of the target."""

    drafted: int  # steps of the draft
    scored: int  # hypotheses whose next token the target scored
    steps: int  # of the target's beam search taken from this run: 1 to `drafted` + 1


@dataclass(frozen=True)
class BeamTrace:
    """The hypotheses of a search, the best first, and its passes."""

    hypotheses: list[Hypothesis]
    passes: list[BeamPass]


def beam_search(
    target: HypothesisReader, prefix: TokenSequence, settings: BeamSettings, draft: BeamDraft | None = None
) -> BeamTrace:
    """The target's beam search after `prefix`; with `draft` from fewer runs of the target.

    Each run yields at least one step, since the running hypotheses themselves are always scored. Nothing is drafted
    past `max_new_tokens`. With the target as its own draft and u = w every pass but the last has gamma + 1 steps.
    """
    beams = begin(prefix, settings)
    passes: list[BeamPass] = []
    while not beams.finished:
        gamma = 0 if draft is None else min(draft.gamma, settings.max_new_tokens - beams.written - 1)
        drafted = [] if draft is None else draft_beams(draft, beams, gamma, settings.eos_ids)
        rows = target.read([*beams.running, *drafted])
        before = beams.written
        while not beams.finished and all(hypothesis in rows for hypothesis in beams.running):
            beams = step(beams, rows, settings)
        passes.append(BeamPass(gamma, len(rows), beams.written - before))
    return BeamTrace(beams.ended, passes)


def draft_beams(draft: BeamDraft, beams: Beams, gamma: int, eos_ids: frozenset[int]) -> list[TokenSequence]:
    """The draft's u best hypotheses after each of `gamma` steps from the target's beams, whose scores it continues.

    A hypothesis that has ended has no next token to score, so it is not drafted.
    """
    hypotheses, scores_W = beams.running, beams.scores_W
    drafted: list[TokenSequence] = []
    for _ in range(gamma):
        hypotheses, scores_W = continuations(hypotheses, scores_W, draft.model.read(hypotheses), draft.u, never=eos_ids)
        drafted += hypotheses
    return drafted
