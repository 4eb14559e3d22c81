"""Trees of a draft's tokens: any draft whose session reads trees (`ReadsTrees`), level by level.

A level is read in one step of the draft. The children of a node are its likeliest tokens, or tokens found in a text,
which were not drawn; or draws from its q, with or without replacement. At T = 0 none are drawn:
draws from a one-hot q would all be the same token. An end of sequence has no children.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Children, Proposal
from specbench.algorithm.continuations import Continuations
from specbench.algorithm.draft import Draft, DraftSession, ReadsTrees, in_batch, models_of, operations_of, start_draft
from specbench.engine.session import Prompt, Session
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT, ByConfidence, Plan, TreeShape, best_first


class TreeDraft:
    """`draft`, whose sessions must be `ReadsTrees`, as one that proposes trees."""

    def __init__(self, draft: Draft, plan: Plan, children: Children, eos_ids: frozenset[int]) -> None:
        self.draft, self.plan, self.children, self.eos_ids = draft, plan, children, eos_ids
        self.operations = draft.operations
        self.models = models_of(draft)
        self.parts = (draft,)

    def start(self, prompt: Prompt, sampling: Sampling) -> "TreeDraftSession":
        return self._grower(self.draft.start(prompt, sampling), sampling)

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "TreeDraftSession":
        return self._grower(start_draft(session, self.draft, prompt, sampling), sampling)

    def in_batch(self, rows: int) -> "TreeDraft":
        return TreeDraft(in_batch(self.draft, rows), self.plan, self.children, self.eos_ids)

    def _grower(self, session: DraftSession, sampling: Sampling) -> "TreeDraftSession":
        assert isinstance(session, ReadsTrees)
        return TreeDraftSession(self, session, sampling)


@dataclass
class _GrowingTree:
    """A tree as it grows: token, parent, depth and value of each node, its row of q [V] if it was drawn, its number.

    The number is that under which the draft has read the node.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    read: dict[int, int] = field(default_factory=lambda: {ROOT: ROOT})
    operations: float = 0.0

    def value(self, node: int) -> float:
        return 1.0 if node == ROOT else self.values[node]

    def add(self, token: int, parent: int, value: float = 1.0) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.values.append(value * self.value(parent))
        return len(self.tokens) - 1


class TreeDraftSession:
    """Builds a tree in each pass, and continues after the accepted path."""

    def __init__(self, draft: TreeDraft, session: ReadsTrees, sampling: Sampling) -> None:
        self.draft, self.session, self.sampling = draft, session, sampling
        self.children: Children = "fixed" if sampling.temperature == 0 else draft.children
        self._read: dict[int, int] = {}  # node of the last proposal -> its number in the draft's own tree

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        """A tree of at most `gamma` levels."""
        if gamma == 0:
            return Proposal([])
        if isinstance(self.draft.plan, TreeShape):
            return self._by_shape(self.draft.plan, tokens, gamma, generator)
        return self._by_confidence(self.draft.plan, tokens, gamma)

    def _by_shape(self, plan: TreeShape, tokens: Sequence[int], depth: int, generator: torch.Generator) -> Proposal:
        tree, counts, depth = _GrowingTree(), plan.children, min(depth, plan.depth)
        first_child = _first_children(counts)
        level = [(ROOT, ROOT)]  # nodes here, and in the shape
        continuations = self._counted(tree, self.session.after_text(tokens, depth), 1)
        for reached in range(1, depth + 1):
            below: list[tuple[int, int]] = []
            families = continuations.children([counts[place + 1] for _, place in level], self.children, generator)
            for (node, place), siblings in zip(level, families, strict=True):
                tree.rows += siblings.rows
                for rank, token in enumerate(siblings.tokens):
                    below.append((tree.add(token, node), first_child[place + 1] + rank))
            level = [(node, place) for node, place in below if counts[place + 1] and not self._ends(tree.tokens[node])]
            if not level or reached == depth:
                break
            continuations = self._after_level(tree, [node for node, _ in level])
        self._read = tree.read
        if not tree.tokens:
            return Proposal([], operations=tree.operations)
        children = self.children if tree.rows else "fixed"
        return Proposal(tree.tokens, None, tree.operations, tree.parents, children, tree.rows or None)

    def _by_confidence(self, plan: ByConfidence, tokens: Sequence[int], depth: int) -> Proposal:
        tree, depth = _GrowingTree(), min(depth, plan.depth)
        level = [ROOT]
        continuations = self._counted(tree, self.session.after_text(tokens, depth), 1)
        for reached in range(1, depth + 1):
            # Of a level no more nodes can remain than of the whole tree.
            found = [
                (confidence * tree.value(node), token, node, confidence)
                for node, ranked in zip(level, continuations.ranked(plan.top), strict=True)
                for token, confidence in ranked
            ]
            found.sort(key=itemgetter(0), reverse=True)
            below = [tree.add(token, node, confidence) for _, token, node, confidence in found[: plan.size - 1]]
            level = [node for node in below if not self._ends(tree.tokens[node])][: plan.top]
            if not level or reached == depth:
                break
            continuations = self._after_level(tree, level)
        kept = best_first(tree.values, tree.depths, plan.size - 1)
        number = {ROOT: ROOT} | {node: place for place, node in enumerate(kept)}
        self._read = {number[node]: read for node, read in tree.read.items() if node in number}
        if not kept:
            return Proposal([], operations=tree.operations)
        parents = [number[tree.parents[node]] for node in kept]
        return Proposal([tree.tokens[node] for node in kept], None, tree.operations, parents)

    def _after_level(self, tree: _GrowingTree, nodes: Sequence[int]) -> Continuations:
        parents = [tree.read[tree.parents[node]] for node in nodes]
        for node in nodes:
            tree.read[node] = len(tree.read) - 1
        continuations = self.session.after_nodes([tree.tokens[node] for node in nodes], parents)
        return self._counted(tree, continuations, len(nodes))

    def _counted(self, tree: _GrowingTree, continuations: Continuations, nodes: int) -> Continuations:
        """Operations of the draft: leaves cost nothing, since they are not read."""
        tree.operations += operations_of(self.draft.draft, continuations.operations, nodes)
        return continuations

    def _ends(self, token: int) -> bool:
        return token in self.draft.eos_ids

    def select(self, path: Sequence[int]) -> None:
        """Select the path. The draft has not read leaves, so a leaf at its end is read in the next pass."""
        self.session.select([self._read[node] for node in path if node in self._read])

    def rollback(self, length: int) -> None:
        self.session.rollback(length)

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        return self.session.score(tokens, prefix_length)


def _first_children(counts: Sequence[int]) -> list[int]:
    """Of a shape with `counts` children of the root and of each node, the index of the first child of each."""
    found, first_child = [], 0
    for count in counts:
        found.append(first_child)
        first_child += count
    return found
