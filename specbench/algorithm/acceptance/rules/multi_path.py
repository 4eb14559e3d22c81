"""Greedy multi-path block verification (Thomas & Pal 2026, arXiv 2602.16961): lossless, for independent paths.

K paths are drawn from q. At each prefix tokens are ordered by p / q, and so paths by their first difference; the
highest one is selected. The law of the highest of K draws is a difference of K-th powers of the distribution function
of one. Block verification with this law in the place of q tests the selected path.

Shapes: G tokens of a path, N drafted tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import Verdict, Verification, residual
from specbench.algorithm.acceptance.rules.block import AcceptBlock, chances
from specbench.config.rule import RuleConfig
from specbench.deferred import torch
from specbench.errors import UserError
from specbench.theory.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from specbench.algorithm.acceptance.base import Chance, DraftedTree, NodeRows, Proposal
    from specbench.config.draft import DraftConfig
    from specbench.config.tree import TreeConfig
    from specbench.sampling import Sampling


@dataclass
class MultiPathConfig(RuleConfig):
    """Greedy multi-path block verification."""

    name: ClassVar[str] = "multi-path"
    about: ClassVar[str] = (
        "Greedy multi-path block verification (Thomas & Pal 2026): lossless, for paths that are independent draws; "
        "tree=widths tree.widths=[3,1,1] tree.children=replaced."
    )
    on_trees: ClassVar[bool] = True
    on_chain: ClassVar[str | None] = "block"

    def check(self, temperature: float, tree: TreeConfig, draft: DraftConfig) -> None:
        """Raise UserError unless a tree's paths are independent draws from one q."""
        if tree.shape == "none":  # what it is on a chain says `on_chain`
            return
        is_else = tree.shape != "widths" or tree.size is not None or any(width > 1 for width in (tree.widths or ())[1:])
        if is_else or tree.children != "replaced" or not draft.scores_children:
            raise UserError(
                f"accept=multi-path: not together with tree={tree.label()}, draft={draft.label()}: its paths are "
                "independent draws from one q; use tree=widths tree.widths=[3,1,1] tree.children=replaced"
            )

    def verification(self, sampling: Sampling) -> Verification:
        return Verification(accept_multi_path, sampling)


class AcceptMultiPath(AcceptBlock):
    """Select one of K independent paths, and verify it as a block."""

    def on_tree(self, p_NV: NodeRows, proposal: Proposal, tree: DraftedTree, chance: Chance) -> Verdict:
        assert proposal.q_NV is not None and proposal.children == "replaced", "paths are independent draws from one q"
        path, q_rows = selected(p_NV, proposal.q_NV, tree)
        if not path:
            return Verdict([], chance.draw(p_NV[ROOT + 1]))
        p_GV, q_GV = torch.stack([p_NV[node + 1] for node in (ROOT, *path)]), torch.stack(q_rows)
        drafted_G = torch.tensor([tree.tokens[node] for node in path], device=p_GV.device)
        h_G, w_G = chances(p_GV, q_GV, drafted_G, len(path))
        for accepted in range(len(path), 0, -1):
            if chance.accepts(path[accepted - 1], h_G[accepted - 1], torch.ones_like(h_G[0])):
                break
        else:
            accepted = 0
        if accepted == len(path):
            return Verdict(path, chance.draw(p_GV[-1]))
        weight = w_G[accepted - 1] if accepted else 1.0
        return Verdict(path[:accepted], chance.draw(residual(weight * p_GV[accepted], q_GV[accepted])))


accept_multi_path = AcceptMultiPath()


def selected(p_NV: NodeRows, q_NV: Sequence[Tensor], tree: DraftedTree) -> tuple[list[int], list[Tensor]]:
    """The highest of the paths from the root: its nodes, and the law [V] of each given those before it.

    A prefix of mass `own` has paths of mass `below` below it, out of the mass up to it: the mass above does not matter.
    """
    paths = [_path(tree, child) for child in tree.children[ROOT + 1]]
    count, laws = len(paths), list[torch.Tensor]()
    below, own = p_NV[0].new_zeros(()), p_NV[0].new_ones(())
    while paths and len(laws) < len(paths[0]):  # equal prefixes end together
        place = len(laws)
        p_V, q_V = p_NV[paths[0][place - 1] + 1 if place else ROOT + 1], q_NV[paths[0][place]]
        order_V = torch.where(q_V > 0, p_V / q_V, torch.inf).argsort(stable=True)
        ordered_V = q_V[order_V]
        low_V = below + own * torch.zeros_like(q_V).scatter(0, order_V, ordered_V.cumsum(0) - ordered_V)
        high_V = low_V + own * q_V
        # (high^K - low^K) / (high - low), in terms that are not below 0.
        powers_V = torch.stack([high_V**power * low_V ** (count - 1 - power) for power in range(count)])
        law_V = q_V * powers_V.sum(0)
        laws.append(law_V / law_V.sum())
        rank_V = order_V.argsort()
        token = max((tree.tokens[path[place]] for path in paths), key=lambda one: int(rank_V[one]))
        paths = [path for path in paths if tree.tokens[path[place]] == token]
        below, own = low_V[token] / high_V[token], own * q_V[token] / high_V[token]
    return paths[0] if paths else [], laws


def _path(tree: DraftedTree, node: int) -> list[int]:
    """The nodes from `node` to the leaf under it."""
    path = [node]
    while children := tree.children[path[-1] + 1]:
        (child,) = children
        path.append(child)
    return path
