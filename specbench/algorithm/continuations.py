"""The continuations that a draft proposes after the nodes of a level, and the choice of children among them.

Shapes: L nodes, K children, V tokens of the vocabulary.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Children
from specbench.algorithm.acceptance.tree_rules import without
from specbench.sampling import (
    BEFORE_ARGMAX,
    NOT_DRAWN,
    NOT_FINITE,
    Sampling,
    draw,
    drawn,
    one_hot,
    standardise,
    uniforms,
    widest,
)

RankedTokens = Sequence[tuple[int, float]]  # tokens and the draft's confidence in each, the highest first
# The next child of a node that has these already, and the row of q [V] that chose it; None if there is none.
NextChild = Callable[[Sequence[int]], tuple[int, Tensor] | None]


def _highest(rows_LV: Tensor, count: int, floor: float) -> list[RankedTokens]:
    """Up to `count` tokens of each row that are above `floor`. Raises FloatingPointError if a row is not finite."""
    top = rows_LV.topk(min(count, rows_LV.shape[-1]))
    values = top.values.tolist()
    if not all(isfinite(row[0]) for row in values):  # NaN counts as the highest
        raise FloatingPointError(NOT_FINITE)
    return [
        [(token, value) for token, value in zip(tokens, row, strict=True) if value > floor]
        for tokens, row in zip(top.indices.tolist(), values, strict=True)
    ]


def choose(q_LV: Tensor, counts: Sequence[int], how: Children, generator: torch.Generator) -> list[list[int]]:
    """Choose up to `counts[i]` tokens from row i, in the order in which they will be tested.

    They are drawn by inverting distribution functions as `sampling.draw` does; one child of one node is a chain's
    token.

    - replaced: independent draws, in which a token may repeat.
    - distinct: draws without replacement, each from the rest of its row; fewer if q has fewer tokens.

    Raises FloatingPointError if a row is not finite.
    """
    device, most = q_LV.device, max(counts)
    if how == "replaced":
        drawn_LK = _draw(q_LV, most, generator)
    else:
        left_LV, columns = q_LV.to(widest(device), copy=True), list[Tensor]()
        places = torch.arange(len(counts), device=device)
        for rank in range(most):
            if rank:  # of the nodes that have so many children
                places = torch.tensor([place for place, count in enumerate(counts) if count > rank], device=device)
            column_L = torch.full((len(counts),), NOT_DRAWN, device=device)
            column_L[places] = _draw(left_LV[places], 1, generator)[:, 0]
            columns.append(column_L)
            if rank + 1 < most:
                left_LV.scatter_(-1, column_L.clamp(min=0).unsqueeze(-1), 0.0)
        drawn_LK = torch.stack(columns, -1)
    drawn = drawn_LK.tolist()
    if any(tokens[0] < 0 for tokens in drawn):
        raise FloatingPointError(NOT_FINITE)
    return [[token for token in tokens[:count] if token >= 0] for tokens, count in zip(drawn, counts, strict=True)]


def _draw(weights_LV: Tensor, times: int, generator: torch.Generator) -> Tensor:
    """Tokens [L, times] drawn independently; NOT_DRAWN if a row has no mass, or is not finite."""
    uniform_L = uniforms(len(weights_LV) * times, generator, weights_LV.device)
    return drawn(weights_LV, uniform_L.view(-1, times))


class Siblings(NamedTuple):
    """The children of one node in the order in which they are tested, and the row of q [V] of each.

    Without rows they were not drawn.
    """

    tokens: Sequence[int]
    rows: Sequence[Tensor] = ()


class Continuations(ABC):
    """The possible continuations of each of L nodes.

    `operations` is the number of arithmetic operations that it took; None stands for one step of the draft per node.
    """

    operations: float | None = None

    @abstractmethod
    def children(self, counts: Sequence[int], how: Children, generator: torch.Generator) -> list[Siblings]:
        """Up to `counts[i]` children of node i. Raises FloatingPointError if a distribution is not finite."""

    @abstractmethod
    def ranked(self, count: int) -> list[RankedTokens]:
        """The `count` likeliest tokens after each node, or fewer. Raises as `children` does."""

    @abstractmethod
    def one_by_one(self, how: Children, generator: torch.Generator) -> list[NextChild]:
        """The children of each node, one at a time, to be merged with other drafts' children."""


class Predicted(Continuations):
    """A distribution for each node."""

    def __init__(
        self, logits_LV: Tensor, vocabulary_size: int, sampling: Sampling, operations: float | None = None
    ) -> None:
        self.logits_LV, self.size, self.sampling = logits_LV[:, :vocabulary_size], vocabulary_size, sampling
        self.operations = operations

    def children(self, counts: Sequence[int], how: Children, generator: torch.Generator) -> list[Siblings]:
        if how == "fixed":  # the likeliest tokens of q have the highest logits
            found = _highest(self.logits_LV, max(counts), -inf)
            return [
                Siblings([token for token, _ in ranked[:count]]) for ranked, count in zip(found, counts, strict=True)
            ]
        q_LV = self._q()
        chosen = choose(q_LV, counts, how, generator)
        return [Siblings(tokens, [row_V] * len(tokens)) for tokens, row_V in zip(chosen, q_LV, strict=True)]

    def ranked(self, count: int) -> list[RankedTokens]:
        sampling = BEFORE_ARGMAX if self.sampling.temperature == 0 else self.sampling
        return _highest(standardise(self.logits_LV, sampling, self.size), count, 0.0)

    def one_by_one(self, how: Children, generator: torch.Generator) -> list[NextChild]:
        return [partial(_draw_child, row_V, how, generator) for row_V in self._q()]

    def _q(self) -> Tensor:
        return standardise(self.logits_LV, self.sampling, self.size)


def _draw_child(
    row_V: Tensor, how: Children, generator: torch.Generator, before: Sequence[int]
) -> tuple[int, Tensor] | None:
    """A draw from the row of q, without the children `before` if `how` is distinct; None if nothing is left."""
    if how == "replaced" or not before:
        return draw(row_V, generator), row_V
    if float(row_V.index_fill(0, torch.tensor(before, device=row_V.device), 0.0).sum()) == 0:
        return None
    return draw(without(row_V, before), generator), row_V


class Found(Continuations):
    """Tokens for each node that were looked up, not drawn, in order."""

    def __init__(self, ranked: Sequence[RankedTokens], vocabulary_size: int, device: torch.device) -> None:
        self._ranked, self.size, self.device = ranked, vocabulary_size, device

    def children(self, counts: Sequence[int], how: Children, generator: torch.Generator) -> list[Siblings]:
        return [
            Siblings([token for token, _ in ranked[:count]])
            for ranked, count in zip(self._ranked, counts, strict=True)
        ]  # fmt: skip

    def ranked(self, count: int) -> list[RankedTokens]:
        return [ranked[:count] for ranked in self._ranked]

    def one_by_one(self, how: Children, generator: torch.Generator) -> list[NextChild]:
        """Each token, drawn from a row with all mass on it, unless another draft has drawn it.

        So the presence of a child depends on the children before it, not on its own draw.
        """
        return [partial(self._find_child, (token for token, _ in ranked)) for ranked in self._ranked]

    def _find_child(self, tokens: Iterator[int], before: Sequence[int]) -> tuple[int, Tensor] | None:
        for token in tokens:
            if token not in before:
                return token, one_hot([token], self.size, self.device)[0]
        return None


class Merged(Continuations):
    """The continuations of several drafts, which alternate.

    Each child has the q of the draft that chose it; distinct children are drawn without all their earlier siblings,
    whichever draft chose these.
    """

    def __init__(self, parts: Sequence[Continuations], operations: float) -> None:
        self.parts, self.operations = parts, operations

    def children(self, counts: Sequence[int], how: Children, generator: torch.Generator) -> list[Siblings]:
        if how == "fixed":
            lists = zip(*(part.children(counts, how, generator) for part in self.parts), strict=True)
            return [
                Siblings(_each_once([siblings.tokens for siblings in of_node])[:count])
                for of_node, count in zip(lists, counts, strict=True)
            ]
        return [
            _chosen(next_child, count)
            for next_child, count in zip(self.one_by_one(how, generator), counts, strict=True)
        ]  # fmt: skip

    def ranked(self, count: int) -> list[RankedTokens]:
        """A token that several drafts rank has the highest of their confidences."""
        merged: list[RankedTokens] = []
        for of_node in zip(*(part.ranked(count) for part in self.parts), strict=True):
            best: dict[int, float] = {}
            for token, confidence in (pair for ranked in of_node for pair in ranked):
                best[token] = max(confidence, best.get(token, 0.0))
            merged.append(sorted(best.items(), key=lambda pair: -pair[1])[:count])
        return merged

    def one_by_one(self, how: Children, generator: torch.Generator) -> list[NextChild]:
        of_nodes = zip(*(part.one_by_one(how, generator) for part in self.parts), strict=True)
        return [partial(_next_in_turn, deque(drafts)) for drafts in of_nodes]


def _next_in_turn(waiting: deque[NextChild], before: Sequence[int]) -> tuple[int, Tensor] | None:
    """A child of the draft whose turn it is; a draft that has none left is dropped."""
    while waiting:
        if (found := waiting[0](before)) is not None:
            waiting.rotate(-1)
            return found
        waiting.popleft()
    return None


def _chosen(next_child: NextChild, count: int) -> Siblings:
    """The first `count` children, each chosen after the earlier ones; fewer if there are no more."""
    tokens: list[int] = []
    rows: list[Tensor] = []
    while len(tokens) < count and (found := next_child(tokens)) is not None:
        tokens.append(found[0])
        rows.append(found[1])
    return Siblings(tokens, rows)


def _each_once(lists: Sequence[Sequence[int]]) -> list[int]:
    """The first token of each list, then the second of each, and so on; each token once."""
    turns = zip_longest(*lists)
    return list(dict.fromkeys(token for turn in turns for token in turn if token is not None))
