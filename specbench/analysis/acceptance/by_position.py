"""Acceptance at each position of a proposal, counted over the passes of a run.

A position is reached if every token before it was accepted and a token was proposed for it; in a tree, if the last
accepted node has children. Tokens after an accepted end of sequence are no part of the completion, so they are neither
reached nor rejected.

Plain arithmetic over a record; no torch.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.records.decoded import Pass
from specbench.records.numbers import OfTrees, PositionCounts
from specbench.records.run_record import PromptRecord
from specbench.theory.trees import ROOT, TreeShape


def levels(a_pass: Pass) -> int:
    """How many tokens the longest path of a pass has: all drafted tokens, for a chain."""
    parents = a_pass.parents
    return a_pass.drafted if parents is None else TreeShape(tuple(parents)).depth


def offered(a_pass: Pass) -> int:
    """The number of positions at which the accepted path was offered a token.

    One more than the path has, if its last node has children. For a chain, all drafted tokens.
    """
    parents, path = a_pass.parents, a_pass.path
    if parents is None or path is None:
        return a_pass.drafted
    return len(path) + ((path[-1] if path else ROOT) in parents)


def rank_counts(passes: Sequence[Pass]) -> list[tuple[int, int]]:
    """For the child of each rank: how often it was accepted, and how many visits to a node had a child of that rank.

    A node is visited if it is the root or was accepted; the node that ends the completion, after which nothing counts,
    is not.
    """
    visits, accepted = Counter[int](), Counter[int]()
    for one in passes:
        parents, path = one.parents, one.path
        if parents is None or path is None:
            continue
        shape, ended = TreeShape(tuple(parents)), one.emitted <= one.accepted
        taken = path[: one.accepted]
        for node in [ROOT, *taken][: len(taken) if ended else len(taken) + 1]:
            visits.update(range(shape.children[node + 1]))
        accepted.update(shape.ranks[node] for node in taken)
    return [(accepted[rank], visits[rank]) for rank in range(len(visits))]


def of_trees(passes: Sequence[Pass]) -> OfTrees:
    """The columns of a run whose proposals are trees; none for a run of chains."""
    if all(one.parents is None for one in passes):
        return {}
    return {
        "nodes_per_pass": sum(one.drafted for one in passes) / len(passes),
        "depth_per_pass": sum(map(levels, passes)) / len(passes),
        "acceptance_by_rank": [accepted / visits for accepted, visits in rank_counts(passes)],
    }


def estimated_by_rank(prompts: Sequence[PromptRecord]) -> list[float] | None:
    """P[k] along the target's own completions by teacher forcing; None if it was not measured."""
    known = [sums for prompt in prompts if "tree" in prompt and (sums := prompt["tree"]["accepted"]) is not None]
    if len(known) < len(prompts):
        return None
    tokens = sum(len(prompt["baseline"].tokens) for prompt in prompts)
    return [sum(column) / tokens for column in zip(*known, strict=True)]


def forecast_tokens(prompts: Sequence[PromptRecord]) -> float | None:
    """Expected tokens per pass of the trees along the target's own completions; None if unknown."""
    known = [passes for prompt in prompts if "tree" in prompt and (passes := prompt["tree"]["passes"]) is not None]
    if len(known) < len(prompts):
        return None
    return sum(len(prompt["baseline"].tokens) for prompt in prompts) / sum(known)


def reached_and_accepted(a_pass: Pass, positions: int, asked: int | None = None) -> NDArray[np.int64]:
    """Whether each of the first `positions` positions was reached, and whether it was accepted: [positions, 2].

    `asked` is how many tokens the pass was to draft. With it, a token that was not proposed, or that came after an
    accepted end of sequence, counts as rejected, for the pass goes without it; without it, as not reached.
    """
    ended = a_pass.emitted <= a_pass.accepted  # the end of the completion was among the accepted tokens
    proposed = asked if asked is not None else a_pass.emitted if ended else offered(a_pass)
    accepted = min(a_pass.accepted, a_pass.emitted)
    found = np.zeros((positions, 2), np.int64)
    found[: max(0, min(proposed, accepted + 1)), 0] = 1
    found[:accepted, 1] = 1
    return found


def acceptance_by_position(passes: Sequence[Pass]) -> list[PositionCounts]:
    """For each draft position: how often it was reached, and how often it was then accepted."""
    longest = max(map(levels, passes), default=0)
    counts = sum((reached_and_accepted(one, longest) for one in passes), np.zeros((longest, 2), np.int64))
    return [
        {"position": place + 1, "reached": int(reached), "accepted": int(accepted)}
        for place, (reached, accepted) in enumerate(counts)
    ]
