"""Trees of draft tokens as tables, and the random decisions of a rule on them.

A rule walks a tree from its root, the last token of the sequence. `Chance` makes each random decision, so that a rule
can be run with a generator or enumerated outcome by outcome.

Shapes: N drafted tokens (nodes without the root), V tokens of the vocabulary. Row 0 of `p_NV`, which has N + 1 rows, is
the target's distribution after the root, row i + 1 that after node i. Row i of `q_NV` is the distribution that node i
was drawn from, given all but its siblings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Verdict
from specbench.sampling import draw
from specbench.theory.trees import ROOT


@dataclass(frozen=True)
class DraftedTree:
    """Drafted tokens and the index of each one's parent, ROOT or an earlier node; siblings in the order drawn."""

    tokens: Sequence[int]
    parents: Sequence[int]

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "DraftedTree":
        return cls(tokens, range(ROOT, len(tokens) - 1))

    @cached_property
    def children(self) -> list[list[int]]:
        """The children of the root, then those of each node, in order."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            found[parent + 1].append(node)
        return found


class Chance(Protocol):
    """The source of a rule's random decisions."""

    def accepts(self, node: int, over: Tensor, under: Tensor) -> bool:
        """Whether r `under` < `over`, r uniform in [0, 1) and the node's own: true with probability over / under."""
        ...

    def draw(self, row_V: Tensor) -> int:
        """A token drawn from `row_V`."""
        ...


class Uniforms:
    """One uniform number a node, drawn ahead, then the token: what Algorithm 1 takes from a generator for a chain."""

    def __init__(self, nodes: int, generator: torch.Generator, device: torch.device) -> None:
        self.uniform_N = torch.rand(nodes, generator=generator, device=device)
        self.generator = generator

    def accepts(self, node: int, over: Tensor, under: Tensor) -> bool:
        return bool(self.uniform_N[node] * under < over)

    def draw(self, row_V: Tensor) -> int:
        return draw(row_V, self.generator)


class NodeRows(Protocol):
    """A row [V] a node: a tensor, a list, or what makes a row when it is asked for."""

    def __getitem__(self, node: int, /) -> Tensor: ...


TreeRule = Callable[[NodeRows, NodeRows, DraftedTree, Chance], Verdict]  # (p_NV, q_NV, tree, chance)
