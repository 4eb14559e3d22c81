"""Acceptance rules for trees of drafted tokens, on tables.

A rule walks a tree from its root, the last token of the sequence. `Chance` makes each random decision, so that a rule
can be run with a generator or enumerated outcome by outcome. On a chain each rule is Algorithm 1 (traversal: block
verification), on the same uniform numbers.

Multi-round speculative sampling tests the children of a node one after the other, and descends into the first that is
accepted. A rejected child leaves a residual R of the target's distribution p, on which the next child is tested. The
test needs the child's law D given all that was drawn before it:

- `WithReplacement`: each child an independent draw from its own q (Miao et al. 2024, "SpecInfer", Algorithm 2,
  Theorem 4.2); children of several drafts may be merged.
- `WithoutReplacement`: distinct draws from one q. D loses each rejected token (Chen et al. 2024, "Sequoia",
  Algorithm 2; Jeon et al. 2024, "Recursive Speculative Decoding").
- `Fixed`: children that were not drawn: the top k of q, or continuations found in a table or text. D is
  one-hot. Equivalently, a token is drawn from p, and the path continues if it is a child.
- `KSequential`: K-SEQ (Sun et al. 2023, "SpecTr", Algorithm 3), for k independent draws from one q: each child is
  tested on p itself, with q scaled so that the total acceptance of each token is at most p.

How many children a node has may depend on what was drawn before them, not on their own tokens.

Traversal verification (Weng et al. 2025, "Traversal Verification for Speculative Tree Decoding") tests from the leaves,
path by path: a path that a walk from the root might reject early is accepted if as a whole it is at least as likely
under p as under q.

Shapes: K children of one node, N drafted tokens (nodes without the root), V tokens of the vocabulary. Row 0 of `p_NV`,
which has N + 1 rows, is the target's distribution after the root, row i + 1 the one after node i. Row i of `q_NV` is
the distribution that node i was drawn from, given all but its siblings.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import (
    RESIDUAL_EPSILON,
    Chance,
    Children,
    DraftedTree,
    NodeRows,
    Verdict,
    normalised,
    residual,
)
from specbench.sampling import draw
from specbench.theory.trees import ROOT


class Uniforms:
    """One uniform number per node, drawn ahead, then the token, as Algorithm 1 draws them for a chain."""

    def __init__(self, nodes: int, generator: torch.Generator, device: torch.device) -> None:
        self.uniform_N = torch.rand(nodes, generator=generator, device=device)
        self.generator = generator

    def accepts(self, node: int, over: Tensor, under: Tensor) -> bool:
        return bool(self.uniform_N[node] * under < over)

    def draw(self, row_V: Tensor) -> int:
        return draw(row_V, self.generator)


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
    """The tests of independent draws from q."""

    def test(self, token: int, q_V: Tensor) -> tuple[Tensor, Tensor]:
        return self.residual_V[token], q_V[token]

    def reject(self, token: int, q_V: Tensor) -> None:
        self.residual_V = residual(self.residual_V, q_V)


class WithoutReplacement(Node):
    """The tests of draws from q without replacement."""

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
    """The tests of children that were not drawn."""

    def test(self, token: int, q_V: Tensor) -> tuple[Tensor, Tensor]:
        return self.residual_V[token], torch.ones_like(self.residual_V[token])

    def reject(self, token: int, q_V: Tensor) -> None:
        excess_V = self.residual_V.clone()  # a one-hot row takes from only one token
        excess_V[token] = (excess_V[token] - 1).clamp(min=0)
        self.residual_V = normalised(excess_V, self.residual_V)


class KSequential(Node):
    """The tests of K-SEQ on independent draws from q."""

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

    It is the rest of q, or uniform over the other tokens if q has no mass there.
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

    A larger rho is also exact and accepts less.
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
    """Walk from the root to the first node without an accepted child, and draw a token from its residual."""
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
        # If w is 1, the test is passed for sure, also if p and q agree and nothing is left.
        parent.weight = torch.where(parent.weight < 1, mass / (mass + 1 - parent.weight), 1.0)
        parent.deleted.append(token)


def _visit(node: int, weight: Tensor, p_NV: NodeRows, tree: DraftedTree) -> Visited:
    return Visited(node, weight, p_NV[node + 1], iter(tree.children[node + 1]))


def _law(q_V: Tensor, parent: Visited, replaced: bool) -> Tensor:
    """The distribution that the next child of `parent` was drawn from."""
    return q_V if replaced else without(q_V, parent.deleted)
