"""Statistics of passes whose proposals were trees. Plain arithmetic over a record; no torch."""

from collections.abc import Sequence

from specbench.records.schema import OfTrees, PassRecord, PromptRecord
from specbench.trees import ROOT, Shape


def parents_of(a_pass: PassRecord) -> list[int] | None:
    """The parents of a pass whose proposal was a tree; None for a chain."""
    return a_pass.get("parents")


def levels(a_pass: PassRecord) -> int:
    """How many tokens the longest path of a pass has: all that were drafted, where they were a chain."""
    parents = parents_of(a_pass)
    return a_pass["drafted"] if parents is None else Shape(tuple(parents)).depth


def offered(a_pass: PassRecord) -> int:
    """The number of positions at which the accepted path was offered a token.

    One more than the path has, where its last node has children. For a chain, all drafted tokens.
    """
    parents, path = parents_of(a_pass), a_pass.get("path")
    if parents is None or path is None:
        return a_pass["drafted"]
    return len(path) + ((path[-1] if path else ROOT) in parents)


def acceptance_by_rank(passes: Sequence[PassRecord]) -> list[float]:
    """The share of visits to a node with children in which the child of each rank was accepted.

    A node is visited if it is the root or was accepted; the node that ends the completion, after which nothing counts,
    is not.
    """
    return [hit / seen for hit, seen in zip(*rank_counts(passes), strict=True)]


def rank_counts(passes: Sequence[PassRecord]) -> tuple[list[int], list[int]]:
    """How often the child of each rank was accepted, and how many visits had a child of that rank."""
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
    return accepted, visits


def of_trees(passes: Sequence[PassRecord]) -> OfTrees:
    """The columns of a run whose proposals are trees; none for a run of chains."""
    if not any(parents_of(one) is not None for one in passes):
        return {}
    return {
        "nodes_per_pass": sum(one["drafted"] for one in passes) / len(passes),
        "depth_per_pass": sum(map(levels, passes)) / len(passes),
        "acceptance_by_rank": acceptance_by_rank(passes),
    }


def estimated_by_rank(prompts: Sequence[PromptRecord]) -> list[float] | None:
    """P[k] along the target's own completions by teacher forcing; None where it was not measured."""
    sums = [prompt["tree"]["accepted"] for prompt in prompts if "tree" in prompt]
    known = [one for one in sums if one is not None]
    if len(known) < len(prompts):
        return None
    tokens = sum(len(prompt["baseline"]["tokens"]) for prompt in prompts)
    return [sum(column) / tokens for column in zip(*known, strict=True)]


def forecast_tokens(prompts: Sequence[PromptRecord]) -> float | None:
    """Expected tokens a pass of the trees along the target's own completions; None if unknown."""
    passes = [prompt["tree"]["passes"] for prompt in prompts if "tree" in prompt]
    known = [one for one in passes if one is not None]
    if len(known) < len(prompts):
        return None
    return sum(len(prompt["baseline"]["tokens"]) for prompt in prompts) / sum(known)
