"""The tree of one pass as lines of text: nodes under their parents, the accepted path, and the target's token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from specbench.errors import UserError
from specbench.records.schema import PassRecord, PromptRecord, RunRecord
from specbench.report.passes import token_text
from specbench.theory.trees import ROOT

# target: the token after the path; unvisited: below a rejected node, or tested after its sibling was accepted
Kind = Literal["accepted", "rejected", "target", "unvisited"]


@dataclass(frozen=True)
class Twig:
    """One line: the branches before a token, the token's text, and what became of it."""

    branches: str
    text: str
    kind: Kind


def tree_of_pass(record: RunRecord, prompt: PromptRecord, number: int) -> list[Twig]:
    """The tree of pass `number` (from 0) of a prompt. Raises UserError where the pass has no tree."""
    passes = prompt["speculative"]["passes"]
    a_pass = passes[number]
    parents, path = a_pass.get("parents"), a_pass.get("path")
    texts = record.get("pieces")
    if parents is None or path is None or texts is None:
        raise UserError(f"--tree {number + 1}: this pass drafted no tree")
    done = sum(one["emitted"] for one in passes[:number])
    last = prompt["speculative"]["tokens"][done + a_pass["emitted"] - 1]
    taken = path[: a_pass["accepted"]]
    target = token_text(texts, last).strip() if a_pass["emitted"] > a_pass["accepted"] else None
    nodes = [token_text(texts, token).strip() or "␣" for token in a_pass["tokens"]]
    return list(_below(ROOT, "", parents, taken, nodes, target))


def _below(
    node: int, before: str, parents: list[int], taken: list[int], nodes: list[str], target: str | None
) -> Iterator[Twig]:
    children = [child for child, parent in enumerate(parents) if parent == node]
    on_path = node in (ROOT, *taken)
    ends_here = on_path and node == (taken[-1] if taken else ROOT)
    lines: list[tuple[int | None, Kind]] = [(child, _kind(child, children, taken, on_path)) for child in children]
    if ends_here and target is not None:
        lines.append((None, "target"))
    for place, (child, kind) in enumerate(lines):
        last = place == len(lines) - 1
        yield Twig(before + ("└─ " if last else "├─ "), nodes[child] if child is not None else (target or ""), kind)
        if child is not None:
            yield from _below(child, before + ("   " if last else "│  "), parents, taken, nodes, target)


def _kind(child: int, siblings: list[int], taken: list[int], on_path: bool) -> Kind:
    if child in taken:
        return "accepted"
    later = any(sibling in taken for sibling in siblings[: siblings.index(child)])
    return "rejected" if on_path and not later else "unvisited"


def telling_pass(prompt: PromptRecord) -> int | None:
    """The pass (from 0) whose tree shows the most; None where no pass has a tree.

    It has the longest accepted path that left a first child; of equals the earliest.
    """
    passes = prompt["speculative"]["passes"]
    grown = [number for number, one in enumerate(passes) if one.get("parents") is not None]
    return max(grown, key=lambda number: _told(passes[number]), default=None)


def _told(a_pass: PassRecord) -> tuple[bool, int]:
    parents, path = a_pass.get("parents") or [], a_pass.get("path") or []
    first = [parents.index(parents[node]) for node in path]  # the first sibling of each accepted node
    return list(path) != first, a_pass["accepted"]
