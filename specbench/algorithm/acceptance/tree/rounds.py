"""Rules that test the children of a node one after the other, and descend into the first that is accepted.

Multi-round speculative sampling: a rejected child leaves a residual R of the target's distribution p, which the next
child is tested on. What D it is tested with must be its law given all that was drawn before it:

- `accept_with_replacement`: each child an independent draw from its own q (Miao et al. 2024, "SpecInfer", Algorithm 2,
  Theorem 4.2); children of several drafts may be merged.
- `accept_without_replacement`: distinct draws from one q. D loses each rejected token (Chen et al. 2024, "Sequoia",
  Algorithm 2; Jeon et al. 2024, "Recursive Speculative Decoding").
- `accept_fixed`: children that were not drawn: the top k of q, or continuations found in a table or text. D is
  one-hot. Equivalently, a token is drawn from p, and the path continues if it is a child.
- `accept_k_sequential`: K-SEQ (Sun et al. 2023, "SpecTr", Algorithm 3), for k independent draws from one q: each child
  is tested on p alone, with q scaled so that the total acceptance of each token is at most p.

On a chain each is Algorithm 1, on the same uniform numbers. How many children a node has may depend on what was drawn
before them, not on their own tokens.

Shapes: K children of one node, N nodes, V tokens of the vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import RESIDUAL_EPSILON, Children, Verdict, residual
from specbench.algorithm.acceptance.tree.base import Chance, DraftedTree, NodeRows
from specbench.theory.trees import ROOT

BISECTIONS = 60


class Node(ABC):
    """The tests of a node's children, in order. If all are rejected, the token is drawn from `residual_V`."""

    def __init__(self, p_V: Tensor, children: int) -> None:
        self.residual_V = p_V
        self.children = children

    @abstractmethod
    def test(self, token: int, q_V: Tensor) -> tuple[Tensor, Tensor]:
        """(a, b): the next child is accepted with probability a / b."""

    @abstractmethod
    def reject(self, token: int, q_V: Tensor) -> None:
        """Update the residual after a rejection."""


class WithReplacement(Node):
    """A node whose children are independent draws from q, tested in rounds (Miao et al. 2024, Algorithm 2)."""

    def test(self, token: int, q_V: Tensor) -> tuple[Tensor, Tensor]:
        return self.residual_V[token], q_V[token]

    def reject(self, token: int, q_V: Tensor) -> None:
        self.residual_V = residual(self.residual_V, q_V)


class WithoutReplacement(Node):
    """A node whose children are draws from q without replacement, tested in rounds (Sequoia, Algorithm 2)."""

    def __init__(self, p_V: Tensor, children: int) -> None:
        super().__init__(p_V, children)
        self.tried: list[int] = []

    def test(self, token: int, q_V: Tensor) -> tuple[Tensor, Tensor]:
        self.d_V = without(q_V, self.tried)
        return self.residual_V[token], self.d_V[token]

    def reject(self, token: int, q_V: Tensor) -> None:
        self.residual_V = residual(self.residual_V, self.d_V)
        self.tried.append(token)


class Fixed(Node):
    """A node whose children are not drawn: the child that equals a draw from p is accepted."""

    def test(self, token: int, q_V: Tensor) -> tuple[Tensor, Tensor]:
        return self.residual_V[token], torch.ones_like(self.residual_V[token])

    def reject(self, token: int, q_V: Tensor) -> None:
        rest_V = self.residual_V.index_fill(0, torch.tensor([token], device=self.residual_V.device), 0.0)
        mass = rest_V.sum()
        self.residual_V = torch.where(mass > RESIDUAL_EPSILON, rest_V / mass, self.residual_V)


class KSequential(Node):
    """A node whose children are independent draws from q, tested by K-SEQ (SpecTr, Algorithm 3)."""

    def __init__(self, p_V: Tensor, children: int) -> None:
        super().__init__(p_V, children)
        self.p_V = p_V
        self.rho: float | None = None

    def test(self, token: int, q_V: Tensor) -> tuple[Tensor, Tensor]:
        if self.rho is None:
            self.rho = scale(self.p_V, q_V, self.children)
            # Taken together: q min(1, p / (rho q)) of each of the k, as long as none before was accepted.
            each_V = q_V.minimum(self.p_V / self.rho)
            beta = each_V.sum()
            taken_V = each_V * ((1 - (1 - beta) ** self.children) / beta.clamp(min=RESIDUAL_EPSILON))
            self.residual_V = residual(self.p_V, taken_V)
        return self.p_V[token], self.rho * q_V[token]

    def reject(self, token: int, q_V: Tensor) -> None:
        """Each child is tested on p itself."""


def without(q_V: Tensor, tried: Sequence[int]) -> Tensor:
    """The distribution of the next draw without replacement of `tried`.

    It is the rest of q, or uniform over the other tokens where that has no mass.
    """
    if not tried:
        return q_V
    index = torch.tensor(tried, device=q_V.device)
    rest_V = q_V.index_fill(0, index, 0.0)
    mass = rest_V.sum()
    if mass > 0:
        return rest_V / mass
    rest_V = torch.ones_like(q_V).index_fill(0, index, 0.0)
    return rest_V / rest_V.sum()


def scale(p_V: Tensor, q_V: Tensor, children: int) -> float:
    """rho of K-SEQ: the smallest from 1 to k with 1 - (1 - beta)^k <= rho beta, beta = sum min(q, p / rho).

    A larger rho is exact too, and accepts less.
    """
    low, high = 1.0, float(children)
    if children == 1:
        return low
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beta = float(q_V.minimum(p_V / middle).sum())
        if 1 - (1 - beta) ** children <= middle * beta:
            high = middle
        else:
            low = middle
    return high


# Algorithm 1 on trees: the tests of a node's children, by how these were chosen.
ROUNDS: dict[Children, type[Node]] = {
    "fixed": Fixed,
    "replaced": WithReplacement,
    "distinct": WithoutReplacement,
}


def walk(p_NV: NodeRows, q_NV: NodeRows, tree: DraftedTree, chance: Chance, start: type[Node]) -> Verdict:
    """From the root down to the first node without an accepted child, and a token from its residual."""
    path: list[int] = []
    node = ROOT
    while True:
        children = tree.children[node + 1]
        tests = start(p_NV[node + 1], len(children))
        for child in children:
            token, q_V = tree.tokens[child], q_NV[child]
            if chance.accepts(child, *tests.test(token, q_V)):
                path.append(child)
                node = child
                break
            tests.reject(token, q_V)
        else:
            return Verdict(path, chance.draw(tests.residual_V))


def accept_with_replacement(p_NV: NodeRows, q_NV: NodeRows, tree: DraftedTree, chance: Chance) -> Verdict:
    """The verdict on a tree of independent draws from q."""
    return walk(p_NV, q_NV, tree, chance, WithReplacement)


def accept_without_replacement(p_NV: NodeRows, q_NV: NodeRows, tree: DraftedTree, chance: Chance) -> Verdict:
    """The verdict on a tree of draws from q without replacement."""
    return walk(p_NV, q_NV, tree, chance, WithoutReplacement)


def accept_fixed(p_NV: NodeRows, q_NV: NodeRows, tree: DraftedTree, chance: Chance) -> Verdict:
    """The verdict on a tree whose children were not drawn; `q_NV` is not used."""
    return walk(p_NV, q_NV, tree, chance, Fixed)


def accept_k_sequential(p_NV: NodeRows, q_NV: NodeRows, tree: DraftedTree, chance: Chance) -> Verdict:
    """The verdict of K-SEQ on a tree of independent draws from q."""
    return walk(p_NV, q_NV, tree, chance, KSequential)


def acceptance_by_rank(p_V: Tensor, q_KV: Iterable[Tensor], tokens: Sequence[int], start: type[Node]) -> list[float]:
    """The probability, for each of the children `tokens` of one node, that it is the accepted child.

    Its mean over drawn children is the acceptance vector of Sequoia (Proposition 3.4); the mean of its sum is the
    acceptance probability of the rule.
    """
    tests, reached, found = start(p_V, len(tokens)), 1.0, []
    for token, q_V in zip(tokens, q_KV, strict=True):
        over, under = tests.test(token, q_V)
        accepted = min(1.0, float(over) / float(under))
        found.append(reached * accepted)
        reached *= 1 - accepted
        tests.reject(token, q_V)
    return found
