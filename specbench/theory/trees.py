"""Shapes of token trees as plain numbers: nodes, expected tokens a pass, and the best shape."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import cast

import numpy as np
from numpy.typing import NDArray

# A tree's shape: the parent of each node, level by level, siblings by rank.
#
# Ranks are counted from 0: the child of rank k is the k-th that is tried. `acceptance[k]` (P) is the probability that,
# of a node's children, that of rank k is accepted; it may differ from level to level. Sizes count the root, the last
# token of the text, which the target reads with the tree: a tree of size n costs what a chain of n - 1 drafted tokens
# costs.


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
        """The first child of the root, then of each node, where it has children."""
        return [0, *accumulate(self.children[:-1])]

    @property
    def most_children(self) -> int:
        return max(self.children)

    def truncated(self, size: int) -> "TreeShape":
        """The `size` nodes, root included, with the least depth plus ranks on their path; of equals the shallower."""
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

    The sum over all nodes of the product of the acceptance of the ranks on the path to it. Ranks past the end of
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


# The best tree for an acceptance by rank: Sequoia's dynamic programme with a bound on the depth; EAGLE-2's order.
#
# Chen et al. 2024, "Sequoia", section 3.1; Li et al. 2024, "EAGLE-2". If acceptance falls with the rank, both give the
# same expected tokens; a measured acceptance need not fall.


IMPOSSIBLE = -1e30  # finite, for sums of it are compared
Table = tuple[NDArray[np.int64], NDArray[np.intp]]


def best_size(acceptance: Acceptance, verify: Mapping[int, float], level: float, depth: int) -> tuple[int, int, float]:
    """The size and depth with the fastest best tree, and its speedup G(n, d) / (t(n) + d c); of equals the smallest.

    `verify[n]` is t(n), the cost of verifying n tokens in target steps, and `level` is c. Sizes are those of `verify`,
    depths from 1 to `depth` (Chen et al. 2024, "Sequoia", section 4).
    """
    found = (2, 1, 0.0)
    for levels, value in enumerate(_values(acceptance, max(verify), depth), 1):
        for size, cost in sorted(verify.items()):
            expected = float(value[2 : size + 1].max())
            if (speedup := expected / (cost + levels * level)) > found[2]:
                found = (size, levels, speedup)
    return found


def _values(acceptance: Acceptance, size: int, depth: int) -> Iterator[NDArray[np.float64]]:
    """The expected tokens of the best trees of up to 1, 2, ... `depth` levels by the number of nodes."""
    if is_same_at_every_level(acceptance):
        yield from (value for value, _ in _by_depth(acceptance, size, depth))
    else:
        yield from (list(_by_depth(acceptance, size, levels))[-1][0] for levels in range(1, depth + 1))


def best_shape(acceptance: Acceptance, size: int, depth: int | None = None) -> TreeShape:
    """The tree of `size` nodes, its root included, and at most `depth` levels below it with the most expected tokens.

    A smaller tree if no tree of that depth has as many nodes. A node has at most as many children as P has ranks.
    """
    levels = size - 1 if depth is None else min(depth, size - 1)
    found = list(_by_depth(acceptance, size, levels))
    if not found:
        return TreeShape(())
    largest = int(np.flatnonzero(found[-1][0] > 0)[-1])
    return _in_levels([table for _, table in found], largest)


def _by_depth(acceptance: Acceptance, size: int, levels: int) -> Iterator[tuple[NDArray[np.float64], Table]]:
    """For subtrees of 1, 2, ... levels the expected tokens by the number of nodes, and how they come about.

    The last level of each is level `levels` of the tree.
    value[d][n] = 1 + the best sum over children of the subtree of a node, of n nodes and d levels below it. With b
    children: T[n, b] = max over m of T[n - m, b - 1] + P[b] value[d - 1][m], T[1, 0] = 1, with P of the children's
    level.
    """
    numbers = np.arange(size + 1)
    leaf = np.where(numbers == 1, 1.0, IMPOSSIBLE)
    value = leaf
    for ranks in reversed(by_level(acceptance, levels)):
        with_children = [leaf]
        taken = np.zeros((len(ranks) + 1, size + 1), np.int64)
        for rank, accepted in enumerate(ranks, 1):
            subtree = np.where(value > 0, accepted * value, IMPOSSIBLE)  # also where the acceptance is 0
            before, here = with_children[-1], np.full(size + 1, IMPOSSIBLE)
            for nodes in range(2, size + 1):
                sums = before[nodes - 1 : 0 : -1] + subtree[1:nodes]
                taken[rank, nodes] = int(sums.argmax()) + 1
                here[nodes] = sums[taken[rank, nodes] - 1]
            with_children.append(here)
        stacked = np.stack(with_children)
        value = stacked.max(0)
        yield value, (taken, stacked.argmax(0))


def _in_levels(tables: Sequence[Table], size: int) -> TreeShape:
    """The shape that the tables chose, level by level."""
    parents: list[int] = []
    level = [(ROOT, size)]
    for taken, children in reversed(tables):
        below: list[tuple[int, int]] = []
        for node, nodes in level:
            sizes: list[int] = []
            for rank in range(int(children[nodes]), 0, -1):
                sizes.append(int(taken[rank, nodes]))
                nodes -= sizes[-1]
            for child in reversed(sizes):
                below.append((len(parents), child))
                parents.append(node)
        level = below
    return TreeShape(tuple(parents))


def best_first(values: Sequence[float], depths: Sequence[int], most: int) -> list[int]:
    """The `most` nodes of the highest value, of equals the shallower, in their own order.

    If no node has a higher value than its parent, as with products of confidences, the parent of each is among them.
    """
    order = sorted(range(len(values)), key=lambda node: (-values[node], depths[node], node))
    return sorted(order[:most])
