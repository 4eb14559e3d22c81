"""Shapes of token trees as plain numbers: nodes and expected tokens per pass.

A tree's shape: the parent of each node, level by level, siblings by rank.

Ranks are counted from 0: the child of rank k is the k-th that is tried. `acceptance[k]` (P) is the probability that a
node's child of rank k is the accepted one; it may differ from level to level. Sizes count the root, the last token of
the text, which the target reads with the tree: a tree of size n costs what a chain of n - 1 drafted tokens costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import cast

ROOT = -1  # the parent of a node that follows the sequence's last token
# P by rank, the same at every level; or a P for each level, of which those that are missing have no children.
Acceptance = Sequence[float] | Sequence[Sequence[float]]


def by_level(acceptance: Acceptance, levels: int) -> list[Sequence[float]]:
    """P at each of `levels` levels, the root's children first."""
    if is_same_at_every_level(acceptance):
        return [cast(Sequence[float], acceptance)] * levels
    return [*cast(Sequence[Sequence[float]], acceptance), *([[]] * levels)][:levels]


def is_same_at_every_level(acceptance: Acceptance) -> bool:
    """Whether P is the same at every level."""
    return not acceptance or isinstance(acceptance[0], int | float)


@dataclass(frozen=True)
class TreeShape:
    """`parents[i]` is ROOT or an earlier node; nodes come level by level, siblings by rank."""

    parents: tuple[int, ...]

    @classmethod
    def chain(cls, tokens: int) -> "TreeShape":
        return cls(tuple(range(ROOT, tokens - 1)))

    @classmethod
    def of_widths(cls, widths: Sequence[int]) -> "TreeShape":
        """Each node of depth d has `widths[d]` children."""
        parents: list[int] = []
        level = [ROOT]
        for width in widths:
            began = len(parents)
            parents += [parent for parent in level for _ in range(width)]
            level = list(range(began, len(parents)))
        return cls(tuple(parents))

    @property
    def size(self) -> int:
        """Nodes with the root."""
        return len(self.parents) + 1

    @cached_property
    def depths(self) -> list[int]:
        """1 for the root's children."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return found

    @property
    def depth(self) -> int:
        return max(self.depths, default=0)

    @cached_property
    def ranks(self) -> list[int]:
        seen: dict[int, int] = {}
        found: list[int] = []
        for parent in self.parents:
            found.append(seen.get(parent, 0))
            seen[parent] = found[-1] + 1
        return found

    @cached_property
    def children(self) -> list[int]:
        """How many children the root has, then each node."""
        found = [0] * self.size
        for parent in self.parents:
            found[parent + 1] += 1
        return found

    @cached_property
    def first_children(self) -> list[int]:
        """The first child of the root, then of each node, if it has children."""
        return [0, *accumulate(self.children[:-1])]

    @property
    def most_children(self) -> int:
        return max(self.children)

    def truncated(self, size: int) -> "TreeShape":
        """The `size` nodes, root included, with the least depth plus ranks on their path; ties go to the shallower."""
        sums: list[int] = []
        for node, parent in enumerate(self.parents):
            sums.append(self.ranks[node] + (0 if parent == ROOT else sums[parent]))
        order = sorted(
            range(len(self.parents)), key=lambda node: (sums[node] + self.depths[node], self.depths[node], node)
        )
        return self.only(order[: size - 1])

    def only(self, nodes: Sequence[int]) -> "TreeShape":
        """The tree of these nodes, which has the parent of each."""
        number = {ROOT: ROOT} | {node: place for place, node in enumerate(sorted(nodes))}
        return TreeShape(tuple(number[self.parents[node]] for node in sorted(nodes)))


def expected_tree_tokens(shape: TreeShape, acceptance: Acceptance) -> float:
    """Expected tokens of a pass, the bonus token included (Chen et al. 2024, "Sequoia", Proposition 3.4).

    It is the sum over all nodes of the product of the acceptances by rank along the node's path. Ranks past the end of
    `acceptance` count as 0.
    """
    products: list[float] = []
    vectors = by_level(acceptance, shape.depth)
    for parent, rank, depth in zip(shape.parents, shape.ranks, shape.depths, strict=True):
        above, accepted = 1.0 if parent == ROOT else products[parent], vectors[depth - 1]
        products.append(above * (accepted[rank] if rank < len(accepted) else 0.0))
    return 1.0 + sum(products)


@dataclass(frozen=True)
class ByConfidence:
    """EAGLE-2's trees (Li et al. 2024), which follow the draft's confidence.

    The `top` most valuable nodes of each level have their `top` likeliest tokens as children, down to `depth`; then the
    `size` - 1 most valuable of all nodes remain. A node's value is the product of the draft's probabilities on its
    path.
    """

    size: int
    depth: int
    top: int

    @property
    def most_children(self) -> int:
        return self.top


# How a draft grows a tree in each pass: in a shape that is fixed before the run, whose tokens are drawn or are the
# likeliest; or by its own confidence.
Plan = TreeShape | ByConfidence
