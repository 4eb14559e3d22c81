"""The best tree for an acceptance by rank: Sequoia's dynamic programme with a bound on the depth; EAGLE-2's order."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.theory.trees import ROOT, Acceptance, TreeShape, by_level, is_same_at_every_level

IMPOSSIBLE = -1e30  # finite, for sums of it are compared
Table = tuple[NDArray[np.int64], NDArray[np.intp]]


def best_size(acceptance: Acceptance, verify: Mapping[int, float], level: float, depth: int) -> tuple[int, int, float]:
    """The size and depth with the fastest best tree, and its speedup G(n, d) / (t(n) + d c); among equals the smallest.

    `verify[n]` is t(n), the cost of verifying n tokens in target steps, and `level` is c. Sizes are taken from
    `verify`, depths from 1 to `depth` (Chen et al. 2024, "Sequoia", section 4).
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
    """The expected tokens of subtrees of 1, 2, ... levels by the number of nodes, and the choices that give them.

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
            subtree = np.where(value > 0, accepted * value, IMPOSSIBLE)  # also if the acceptance is 0
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
