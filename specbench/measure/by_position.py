"""Acceptance at each position of a proposal, counted over the passes of a run.

A position is reached where every token before it was accepted and a token was proposed for it; in a tree, where the
last accepted node has children. Tokens after an accepted end of sequence are no part of the completion, so they are
neither reached nor rejected.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.measure.ends import passes_to_come
from specbench.measure.tree_passes import levels, offered
from specbench.records.schema import PassRecord, PositionCounts


def reached_and_accepted(a_pass: PassRecord, positions: int, asked: int | None = None) -> NDArray[np.int64]:
    """Whether each of the first `positions` positions was reached, and whether it was accepted: [positions, 2].

    `asked` is how many tokens the pass was to draft. With it, a token that was not proposed, or that came after an
    accepted end of sequence, counts as rejected, for the pass goes without it; without it, as not reached.
    """
    ended = a_pass["emitted"] <= a_pass["accepted"]  # the end of the completion was among the accepted tokens
    proposed = asked if asked is not None else a_pass["emitted"] if ended else offered(a_pass)
    accepted = min(a_pass["accepted"], a_pass["emitted"])
    places = np.arange(positions)
    return np.stack([(places < proposed) & (places <= accepted), places < accepted], axis=-1).astype(np.int64)


def acceptance_by_position(passes: Sequence[PassRecord]) -> list[PositionCounts]:
    """For each draft position: how often it was reached, and how often it was then accepted."""
    longest = max(map(levels, passes), default=0)
    counts = sum((reached_and_accepted(one, longest) for one in passes), np.zeros((longest, 2), np.int64))
    return [
        {"position": place + 1, "reached": int(reached), "accepted": int(accepted)}
        for place, (reached, accepted) in enumerate(counts)
    ]


def tokens_by_position(chances: Sequence[float], lengths: Sequence[int]) -> float:
    """Tokens a pass over completions of these lengths, from the acceptance of the token at each position of a proposal.

    1 + a_1 + a_1 a_2 + ..., less the tokens that the last passes of the completions lack. `chances` are those of a
    token whose predecessors in the proposal were accepted.
    """
    table = passes_to_come(np.array(chances, float), max(lengths))
    return sum(lengths) / float(table[list(lengths)].sum())
