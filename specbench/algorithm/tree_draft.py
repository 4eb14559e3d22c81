"""Trees of a draft's tokens: any draft whose session reads trees (`after_text`, `after_nodes`), level by level.

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
from specbench.algorithm.draft import Draft, DraftSession, operations_of
from specbench.engine.session import Prompt, Session
from specbench.sampling import Sampling
from specbench.theory.best_tree import best_first
from specbench.theory.trees import ROOT, ByConfidence, Plan, TreeShape


class TreeDraft(Draft):
    """`draft`, whose sessions must read trees, as one that proposes trees."""

    def __init__(self, draft: Draft, plan: Plan, children: Children, eos_ids: frozenset[int]) -> None:
        self.draft, self.plan, self.children, self.eos_ids = draft, plan, children, eos_ids
        self.operations = draft.operations
        self.models = draft.models
        self.parts = (draft,)

    def start(self, prompt: Prompt, sampling: Sampling) -> "TreeDraftSession":
        return TreeDraftSession(self, self.draft.start(prompt, sampling), sampling)

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "TreeDraftSession":
        return TreeDraftSession(self, self.draft.start_on(session, prompt, sampling), sampling)

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        self.draft.expect(sampling, gammas)

    def in_batch(self, rows: int) -> "TreeDraft":
        return TreeDraft(self.draft.in_batch(rows), self.plan, self.children, self.eos_ids)


@dataclass
class _Growth:
    """A tree as it grows: token, parent, depth and value of each node, and its row of q [V] if it was drawn.

    `places`: where each node is in the shape. `read`: the number under which the draft has read each node.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=lambda: {ROOT: ROOT})
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

    def best(self, most: int) -> "_Growth":
        """The `most` nodes of the highest value, for verification."""
        kept = best_first(self.values, self.depths, most)
        number = {ROOT: ROOT} | {node: place for place, node in enumerate(kept)}
        read = {number[node]: read for node, read in self.read.items() if node in number}
        parents = [number[self.parents[node]] for node in kept]
        return _Growth([self.tokens[node] for node in kept], parents, read=read, operations=self.operations)


class TreeDraftSession(DraftSession):
    """Builds a tree in each pass, and continues after the accepted path."""

    def __init__(self, draft: TreeDraft, session: DraftSession, sampling: Sampling) -> None:
        self.draft, self.session, self.sampling = draft, session, sampling
        self.children: Children = "fixed" if sampling.temperature == 0 else draft.children
        self._read: dict[int, int] = {}  # node of the last proposal -> its number in the draft's own tree

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        """A tree of at most `gamma` levels."""
        if gamma == 0:
            return Proposal([])
        plan, tree, level = self.draft.plan, _Growth(), [ROOT]
        depth = min(gamma, plan.depth)
        continuations = self._counted(tree, self.session.after_text(tokens, depth), 1)
        for reached in range(1, depth + 1):
            if isinstance(plan, TreeShape):
                below = self._level_of_shape(plan, tree, level, continuations, generator)
                level = [node for node in below if tree.tokens[node] not in self.draft.eos_ids]
            else:
                below = self._level_by_confidence(plan, tree, level, continuations)
                level = [node for node in below if tree.tokens[node] not in self.draft.eos_ids][: plan.top]
            if not level or reached == depth:
                break
            continuations = self._after_level(tree, level)
        if len(tree.tokens) >= plan.size:
            tree = tree.best(plan.size - 1)
        self._read = tree.read
        if not tree.tokens:
            return Proposal([], operations=tree.operations)
        children = self.children if tree.rows else "fixed"
        return Proposal(tree.tokens, None, tree.operations, tree.parents, children, tree.rows or None)

    def _level_of_shape(
        self, shape: TreeShape, tree: _Growth, level: Sequence[int], found: Continuations, generator: torch.Generator
    ) -> list[int]:
        """Add the children of the nodes of `level`, and return the new nodes to which the shape gives children."""
        counts, below = shape.children, list[int]()
        places = [tree.places[node] for node in level]
        families = found.children([counts[place + 1] for place in places], self.children, generator)
        for node, place, siblings in zip(level, places, families, strict=True):
            tree.rows += siblings.rows
            for child_place, token in enumerate(siblings.tokens, shape.first_children[place + 1]):
                child = tree.add(token, node)
                tree.places[child] = child_place
                if counts[child_place + 1]:
                    below.append(child)
        return below

    def _level_by_confidence(
        self, plan: ByConfidence, tree: _Growth, level: Sequence[int], found: Continuations
    ) -> list[int]:
        """Add the likeliest children of the nodes of `level`, the most valuable first."""
        children = [
            (confidence * tree.value(node), token, node, confidence)
            for node, ranked in zip(level, found.ranked(plan.top), strict=True)
            for token, confidence in ranked
        ]
        children.sort(key=itemgetter(0), reverse=True)
        # No more nodes of a level can remain than of the whole tree.
        return [tree.add(token, node, confidence) for _, token, node, confidence in children[: plan.size - 1]]

    def _after_level(self, tree: _Growth, nodes: Sequence[int]) -> Continuations:
        parents = [tree.read[tree.parents[node]] for node in nodes]
        for node in nodes:
            tree.read[node] = len(tree.read) - 1
        continuations = self.session.after_nodes([tree.tokens[node] for node in nodes], parents)
        return self._counted(tree, continuations, len(nodes))

    def _counted(self, tree: _Growth, continuations: Continuations, nodes: int) -> Continuations:
        """Operations of the draft: leaves cost nothing, since they are not read."""
        tree.operations += operations_of(self.draft, continuations.operations, nodes)
        return continuations

    def select(self, path: Sequence[int]) -> None:
        """Select the path. The draft has not read leaves, so a leaf at its end is read in the next pass."""
        self.session.select([self._read[node] for node in path if node in self._read])

    def rollback(self, length: int) -> None:
        self.session.rollback(length)

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        return self.session.score(tokens, prefix_length)
