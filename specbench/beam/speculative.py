"""Speculative beam search: several steps of the target's own beam search from one run of the target.

Appendix A.4 of the paper: the draft runs a beam search of its own, of width u, for gamma steps; the target scores all
of those texts at once; a step is taken as long as the target's w beams are among the draft's u. Steps are computed from
the target's rows alone, so the result is its own whatever is drafted.
"""

from dataclasses import dataclass

from specbench.beam.search import Beams, Hypothesis, Reader, Rule, begin, continuations, step
from specbench.models import TokenSequence


@dataclass(frozen=True)
class Ahead:
    """What drafts: a model that has begun on the same prompt, its beams and its steps in a pass."""

    draft: Reader
    u: int
    gamma: int


@dataclass(frozen=True)
class Pass:
    """One run of the target."""

    drafted: int  # steps of the draft
    scored: int  # texts that the target scored what follows of
    steps: int  # of the target's beam search that came of it: from 1 to `drafted` + 1


@dataclass(frozen=True)
class BeamTrace:
    """What a search found, the best first, and its passes."""

    found: list[Hypothesis]
    passes: list[Pass]


def beam_search(target: Reader, prefix: TokenSequence, rule: Rule, ahead: Ahead | None = None) -> BeamTrace:
    """The target's beam search behind `prefix`; with `ahead` from fewer runs of the target.

    At least one step comes of each run, for the running texts themselves are always scored. Nothing is drafted past
    `max_new_tokens`. With the target as its own draft and u = w every pass but the last has gamma + 1 steps.
    """
    beams = begin(prefix, rule)
    passes: list[Pass] = []
    while not beams.over:
        gamma = 0 if ahead is None else min(ahead.gamma, rule.max_new_tokens - beams.written - 1)
        drafted = [] if ahead is None else draft_beams(ahead, beams, gamma, rule.eos_ids)
        rows = target.read([*beams.running, *drafted])
        before = beams.written
        while not beams.over and all(text in rows for text in beams.running):
            beams = step(beams, rows, rule)
        passes.append(Pass(gamma, len(rows), beams.written - before))
    return BeamTrace(beams.ended, passes)


def draft_beams(ahead: Ahead, beams: Beams, gamma: int, eos_ids: frozenset[int]) -> list[TokenSequence]:
    """The draft's u best texts after each of `gamma` steps from the target's beams, whose scores it goes on from.

    A text that has ended has no next token to score, so it takes no place.
    """
    texts, scores_W = beams.running, beams.scores_W
    drafted: list[TokenSequence] = []
    for _ in range(gamma):
        texts, scores_W = continuations(texts, scores_W, ahead.draft.read(texts), ahead.u, never=eos_ids)
        drafted += texts
    return drafted
