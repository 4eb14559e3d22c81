"""Traversal verification: a tree is tested from its leaves, path by path, not from its root.

A path that a walk from the root might reject early is accepted if as a whole it is at least as likely under p as under
q (Weng et al. 2025, "Traversal Verification for Speculative Tree Decoding"). On a chain this is block
verification (`algorithm.acceptance.rules.block`), with the same uniform numbers.

Shapes: N nodes, V tokens of the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import RESIDUAL_EPSILON, Verdict
from specbench.algorithm.acceptance.tree.base import Chance, DraftedTree, NodeRows
from specbench.algorithm.acceptance.tree.rounds import without
from specbench.theory.trees import ROOT


@dataclass
class Visited:
    """A node on the present path: its weight w, its remaining p, and its deleted children."""

    node: int
    weight: Tensor
    p_V: Tensor
    children: Iterator[int]
    deleted: list[int] = field(default_factory=list)


def accept_traversal(
    p_NV: NodeRows, q_NV: NodeRows, tree: DraftedTree, chance: Chance, replaced: bool = False
) -> Verdict:
    """The verdict of traversal verification.

    The first leaf, depth first, is accepted with its whole path with probability w = min(1, w_parent p(x) / q(x)).
    Otherwise it is deleted, its parent's p becomes norm(S) and its parent's w becomes |S| / (|S| + 1 - w), S = max(0, w
    p - q); a node without remaining children is a leaf. The root is always accepted. The next token is drawn from the p
    of that moment.

    Siblings are distinct draws, each from its own row of q without the tokens of the siblings before it; with
    `replaced` they are independent draws.
    """
    path = [_visit(ROOT, p_NV[0].new_ones(()), p_NV, tree)]
    while True:
        here = path[-1]
        child = next(here.children, None)
        if child is not None:
            token, q_V = tree.tokens[child], _law(q_NV[child], here, replaced)
            weight = (here.weight * here.p_V[token] / q_V[token]).clamp(max=1.0)
            path.append(_visit(child, weight, p_NV, tree))
            continue
        if here.node == ROOT or chance.accepts(here.node, here.weight, torch.ones_like(here.weight)):
            return Verdict([visited.node for visited in path[1:]], chance.draw(here.p_V))
        path.pop()
        parent, token = path[-1], tree.tokens[here.node]
        excess_V = (parent.weight * parent.p_V - _law(q_NV[here.node], parent, replaced)).clamp(min=0)
        mass = excess_V.sum()
        if mass > RESIDUAL_EPSILON:
            parent.p_V = excess_V / mass
        # Where w is 1 the test is passed for sure, also where p and q agree and nothing is left.
        parent.weight = torch.where(parent.weight < 1, mass / (mass + 1 - parent.weight), 1.0)
        parent.deleted.append(token)


def _visit(node: int, weight: Tensor, p_NV: NodeRows, tree: DraftedTree) -> Visited:
    return Visited(node, weight, p_NV[node + 1], iter(tree.children[node + 1]))


def _law(q_V: Tensor, parent: Visited, replaced: bool) -> Tensor:
    """The distribution that the next child of `parent` was drawn from."""
    return q_V if replaced else without(q_V, parent.deleted)
