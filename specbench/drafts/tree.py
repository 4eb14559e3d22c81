"""Trees of a draft's tokens: any draft whose session reads trees (`ReadsTrees`), level by level.

A level is read in one step of the draft. The children of a node are its likeliest tokens, which were not drawn; or
draws from its q, with or without replacement. At T = 0 they are the likeliest whatever was asked for: draws from a
one-hot q would all be the same token. An end of text has no children.

Shapes: N nodes, L nodes of a level, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.acceptance import Children, Proposal
from specbench.drafts.base import Draft, ReadsTrees
from specbench.drafts.children import choose
from specbench.models import Prompt
from specbench.sampling import BEFORE_ARGMAX, NOT_FINITE, Sampling, standardise
from specbench.trees import ROOT, ByConfidence, FixedShape, Plan, best_first


class TreeDraft:
    """`draft`, whose sessions must be `ReadsTrees`, as one that proposes trees."""

    def __init__(
        self, draft: Draft, plan: Plan, children: Children, vocabulary_size: int, eos_ids: frozenset[int]
    ) -> None:
        self.draft, self.plan, self.children = draft, plan, children
        self.vocabulary_size, self.eos_ids = vocabulary_size, eos_ids
        self.operations = draft.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "TreeDraftSession":
        session = self.draft.start(prompt, sampling)
        assert isinstance(session, ReadsTrees)
        return TreeDraftSession(self, session, sampling)


@dataclass
class _Tree:
    """A tree as it grows: of each node its token, parent, depth, value, and the row of q that it came from; and under
    which number the draft has read it."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    read: dict[int, int] = field(default_factory=lambda: {ROOT: ROOT})

    def add(self, token: int, parent: int, row: int, value: float = 1.0) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.values.append(value if parent == ROOT else value * self.values[parent])
        self.rows.append(row)
        return len(self.tokens) - 1


class TreeDraftSession:
    """Grows a tree a pass, and reads on where the accepted path ends."""

    def __init__(self, draft: TreeDraft, session: ReadsTrees, sampling: Sampling) -> None:
        self.draft, self.session, self.sampling = draft, session, sampling
        self.children: Children = "fixed" if sampling.temperature == 0 else draft.children
        self._read: dict[int, int] = {}  # node of the last proposal -> its number in the draft's own tree

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        """A tree of at most `gamma` levels."""
        if gamma == 0:
            return Proposal([])
        if isinstance(self.draft.plan, FixedShape):
            return self._by_shape(self.draft.plan, tokens, gamma, generator)
        return self._by_confidence(self.draft.plan, tokens, gamma)

    def _by_shape(self, plan: FixedShape, tokens: Sequence[int], depth: int, generator: torch.Generator) -> Proposal:
        tree, rows, counts = _Tree(), list[Tensor](), plan.shape.children
        first_child = _first_children(counts)
        logits_LV = self.session.after_text(tokens)
        level = [(ROOT, ROOT)]  # nodes here, and in the shape
        for _ in range(min(depth, plan.depth)):
            row_LV = self._rows(logits_LV)
            below: list[tuple[int, int]] = []
            for row_V, (node, place) in zip(row_LV, level, strict=True):
                rows.append(row_V)
                for rank, token in enumerate(choose(row_V, counts[place + 1], self.children, generator)):
                    below.append((tree.add(token, node, len(rows) - 1), first_child[place + 1] + rank))
            level = [(node, place) for node, place in below if counts[place + 1] and not self._ends(tree.tokens[node])]
            if not level or tree.depths[-1] == min(depth, plan.depth):
                break
            logits_LV = self._read_level(tree, [node for node, _ in level])
        self._read = tree.read
        q_NV = None if self.children == "fixed" else torch.stack(rows)[tree.rows]
        return Proposal(tree.tokens, q_NV, self._operations(tree), tree.parents, self.children)

    def _by_confidence(self, plan: ByConfidence, tokens: Sequence[int], depth: int) -> Proposal:
        tree, depth = _Tree(), min(depth, plan.depth)
        sampling = BEFORE_ARGMAX if self.sampling.temperature == 0 else self.sampling
        logits_LV = self.session.after_text(tokens)
        level = [ROOT]
        for reached in range(1, depth + 1):
            top = standardise(logits_LV, sampling, self.draft.vocabulary_size).topk(plan.top)
            if top.values.isnan().any():
                raise FloatingPointError(NOT_FINITE)
            below = [
                tree.add(token, node, 0, confidence)
                for node, likeliest, confidences in zip(level, top.indices.tolist(), top.values.tolist(), strict=True)
                for token, confidence in zip(likeliest, confidences, strict=True)
                if confidence > 0
            ]
            open_nodes = [node for node in below if not self._ends(tree.tokens[node])]
            best = best_first([tree.values[node] for node in open_nodes], [0] * len(open_nodes), plan.top)
            level = [open_nodes[place] for place in best]
            if not level or reached == depth:
                break
            logits_LV = self._read_level(tree, level)
        kept = best_first(tree.values, tree.depths, plan.size - 1)
        number = {ROOT: ROOT} | {node: place for place, node in enumerate(kept)}
        self._read = {number[node]: read for node, read in tree.read.items() if node in number}
        parents = [number[tree.parents[node]] for node in kept]
        return Proposal([tree.tokens[node] for node in kept], None, self._operations(tree), parents)

    def _rows(self, logits_LV: Tensor) -> Tensor:
        """What children are chosen from: q, or logits where the likeliest are taken."""
        if self.children == "fixed":
            return logits_LV[:, : self.draft.vocabulary_size].float()
        return standardise(logits_LV, self.sampling, self.draft.vocabulary_size)

    def _read_level(self, tree: _Tree, nodes: Sequence[int]) -> Tensor:
        parents = [tree.read[tree.parents[node]] for node in nodes]
        for node in nodes:
            tree.read[node] = len(tree.read) - 1
        return self.session.after_nodes([tree.tokens[node] for node in nodes], parents)

    def _operations(self, tree: _Tree) -> float:
        """Of one step for the text's end and for each node that was read: leaves cost the draft nothing."""
        return self.draft.operations * len(tree.read)

    def _ends(self, token: int) -> bool:
        return token in self.draft.eos_ids

    def select(self, path: Sequence[int]) -> None:
        """The draft has not read the leaves: where the path ends with one it is left to be read as text."""
        self.session.select([self._read[node] for node in path if node in self._read])

    def rollback(self, length: int) -> None:
        self.session.rollback(length)

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        return self.session.score(tokens, prefix_length)


def _first_children(counts: Sequence[int]) -> list[int]:
    """Of a shape with `counts` children of the root and of each node, the index of the first child of each."""
    found, following = [], 0
    for count in counts:
        found.append(following)
        following += count
    return found
