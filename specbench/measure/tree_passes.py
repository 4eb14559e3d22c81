"""What passes whose proposals were trees say of them. Plain arithmetic over what a record holds; no torch."""

from collections.abc import Sequence

from specbench.records.schema import OfTrees, PassRecord
from specbench.trees import ROOT, Shape, expected_tokens


def parents_of(a_pass: PassRecord) -> list[int] | None:
    """The parents of a pass whose proposal was a tree; None for a chain."""
    return a_pass.get("parents")


def levels(a_pass: PassRecord) -> int:
    """How many tokens the longest path of a pass has: all that were drafted, where they were a chain."""
    parents = parents_of(a_pass)
    return a_pass["drafted"] if parents is None else Shape(tuple(parents)).depth


def offered(a_pass: PassRecord) -> int:
    """At how many positions the accepted path was offered a token: one more than it has, where its last node has
    children. Of a chain, all that were drafted."""
    parents, path = parents_of(a_pass), a_pass.get("path")
    if parents is None or path is None:
        return a_pass["drafted"]
    return len(path) + ((path[-1] if path else ROOT) in parents)


def acceptance_by_rank(passes: Sequence[PassRecord]) -> list[float]:
    """Of all visits to a node with children, the share in which the child of each rank was the accepted one. A node is
    visited where it is the root or was accepted; the node that ends the text, after which nothing counts, is not."""
    visits: list[int] = []
    accepted: list[int] = []
    for one in passes:
        parents, path = parents_of(one), one.get("path")
        if parents is None or path is None:
            continue
        shape, ended = Shape(tuple(parents)), one["emitted"] <= one["accepted"]
        taken = path[: one["accepted"]]
        visited = [ROOT, *taken][: len(taken) if ended else len(taken) + 1]
        for place, node in enumerate(visited):
            children = shape.children[node + 1]
            surplus = children - len(visits)
            visits += [0] * surplus
            accepted += [0] * surplus
            for rank in range(children):
                visits[rank] += 1
            if place < len(taken):
                accepted[shape.ranks[taken[place]]] += 1
    return [hit / seen for hit, seen in zip(accepted, visits, strict=True)]


def of_trees(passes: Sequence[PassRecord]) -> OfTrees:
    """The columns of a run whose proposals are trees; none for a run of chains."""
    if not any(parents_of(one) is not None for one in passes):
        return {}
    return {
        "nodes_per_pass": sum(one["drafted"] for one in passes) / len(passes),
        "depth_per_pass": sum(map(levels, passes)) / len(passes),
        "acceptance_by_rank": acceptance_by_rank(passes),
    }


def predicted_tokens(passes: Sequence[PassRecord], acceptance: Sequence[float]) -> float:
    """Expected tokens of the mean pass (Sequoia, Proposition 3.4), from the shapes that passes had."""
    return sum(expected_tokens(Shape(tuple(parents_of(one) or ())), acceptance) for one in passes) / len(passes)
