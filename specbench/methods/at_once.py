"""Drafts whose forward pass gives all tokens of a proposal, each row of q independent of the tokens drafted before it.

Shapes: K tokens ahead, V logits.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal, UnverifiedTokens
from specbench.algorithm.continuations import Continuations, Found, Predicted
from specbench.algorithm.draft import ScoresAhead
from specbench.engine.session import Model, Prompt, Session, up_to_end
from specbench.sampling import Sampling, TokenChoice, checked, drawn, most_likely, standardise
from specbench.theory.trees import ROOT

TOKENS_AT_ONCE = 16  # of a text that is scored


class AtOnceDraft(Protocol):
    """The parts of such a draft that its session needs."""

    operations: float

    @property
    def target(self) -> Model: ...

    @property
    def device(self) -> torch.device: ...


class AtOnceSession(ScoresAhead):
    """Proposes a token from each row of `ahead`; in a tree all nodes of a level have the same children."""

    stops_at_end = True
    draft: AtOnceDraft
    sampling: Sampling
    _ahead_KV: Tensor | None = None  # while a tree is grown
    _depths: list[int]  # of its nodes

    @abstractmethod
    def ahead(self, tokens: Sequence[int], most: int) -> Tensor | None:
        """Logits of at most `most` tokens after `tokens`; None if nothing is predicted yet."""

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        ahead_KV = self.ahead(tokens, gamma)
        if ahead_KV is None:
            return Proposal([])
        return independent_proposal(ahead_KV, self.sampling, self.draft.target, generator)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        self._depths, self._ahead_KV = [], self.ahead(tokens, levels)
        rows = 0 if self._ahead_KV is None else len(self._ahead_KV)
        return self._after([0], rows * self.draft.operations)

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        """The continuations are the same after every node of a depth."""
        first = len(self._depths)
        for parent in parents:
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)
        return self._after(self._depths[first:], 0.0)

    def _after(self, depths: Sequence[int], operations: float) -> Continuations:
        """The continuations `depths` tokens ahead; none beyond the last row, or if there are no rows."""
        size, ahead_KV = self.draft.target.vocabulary_size, self._ahead_KV
        if ahead_KV is None or max(depths) >= len(ahead_KV):
            return Found([()] * len(depths), size, self.draft.device)
        return Predicted(self.after_depths(ahead_KV, depths), size, self.sampling, operations)

    def after_depths(self, ahead_KV: Tensor, depths: Sequence[int]) -> Tensor:
        """Logits [N, V] after nodes of these depths, from the logits of each depth."""
        return ahead_KV[depths]


def masked_entries(length: int, places: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions [L] of the entries of a text and of masked ones after them, and bool [L, L]: what each attends to.

    `places[k - 1]` numbers the entries of the text after which a k-th masked entry stands; each also has a (k - 1)-th.
    A masked entry attends to the text up to its place and to the masked entries between.
    """
    after_L = torch.cat([torch.arange(length, device=device), *places])
    counts = [length, *map(len, places)]
    depth_L = torch.cat([torch.full((count,), depth, device=device) for depth, count in enumerate(counts)])
    seen_LL = (depth_L == 0) & (after_L <= after_L[:, None])
    seen_LL |= (after_L == after_L[:, None]) & (depth_L <= depth_L[:, None])
    return after_L + depth_L, seen_LL


def sampled_places(length: int, depths: int, share: float, device: torch.device) -> list[Tensor]:
    """Places for `masked_entries` in training: each depth has a random `share` of the places of the depth before."""
    places = [torch.arange(length, device=device)]
    for depth in range(1, depths):
        among = places[-1][places[-1] + depth < length]
        kept = torch.randperm(len(among), device=device)[: round(length * share**depth)]
        places.append(among[kept.sort().values])
    return places[1:]


def all_places(length: int, depths: int, device: torch.device, first: int = 0) -> list[Tensor]:
    """Places for `masked_entries`: all from entry `first` on that predict a token of the text."""
    return [torch.arange(first, length - depth, device=device) for depth in range(1, depths)]


def independent_proposal(logits_GV: Tensor, sampling: Sampling, target: Model, generator: torch.Generator) -> Proposal:
    """A token from each of these rows, up to the end of the text."""
    size, ends = target.vocabulary_size, target.eos_ids
    uniform_G = TokenChoice(sampling, size).uniforms(len(logits_GV), generator)
    if uniform_G is None:
        return Proposal(up_to_end(most_likely(logits_GV, size, len(logits_GV)), ends))
    q_GV = standardise(logits_GV, sampling, size)
    drafted = up_to_end(checked(drawn(q_GV, uniform_G).tolist()), ends)
    return Proposal(drafted, q_GV[: len(drafted)])


def positions_after(ids: Sequence[int], nodes: Sequence[int], first: int) -> UnverifiedTokens:
    """The positions `ids`, one after another, after each of `nodes`; they are numbered from `first`."""
    parents = list[int]()
    for node in nodes:
        number = first + len(parents)
        parents += [node, *range(number, number + len(ids) - 1)]
    return UnverifiedTokens([*ids] * len(nodes), parents)


def room(model: Model, ids: Sequence[int], length: int, most: int) -> int:
    """How many of the positions `ids`, at most `most`, can follow a text of so many tokens."""
    most = min(most, len(ids))
    return most if model.longest is None else max(0, min(most, model.longest - length))


class RowsAlong:
    """Scores a text by what `model` predicts at the positions `ids`, which it reads after each token of the text.

    `own`: the row after the token itself is the first of a proposal; without it the token after the next is.
    """

    def __init__(
        self, model: Model, prompt: Prompt, ids: Sequence[int], device: torch.device, own: bool = False
    ) -> None:
        self.model, self.prompt, self.ids, self.device, self.own = model, prompt, ids, device, own
        self._session: Session | None = None
        self._rows: list[Tensor] = []  # logits [K, V] after the tokens of the text from number `_first` on
        self._first = len(prompt.prefix) - 1

    def q_ahead(self, tokens: Sequence[int], prefix_length: int, most: int, sampling: Sampling) -> Iterator[Tensor]:
        """q [L, V] of the first, second, ... token of a proposal, of up to `most`: `ScoresAhead.score_ahead`."""
        before = 1 if self.own else 2  # tokens from one that rows follow to the first that they are about
        most = min(most, len(self.ids) + self.own)
        self._read(tokens[: len(tokens) - before], most - self.own)
        places = range(prefix_length - before - self._first, len(tokens) - before - self._first)
        rows, self._rows = self._rows, self._rows[-most:]
        self._first += len(rows) - len(self._rows)
        return (self._q(rows, places, ahead, sampling) for ahead in range(most))

    def _q(self, rows: Sequence[Tensor], places: range, ahead: int, sampling: Sampling) -> Tensor:
        """q [L, V] in row `ahead` after each of `rows` at `places`, less `ahead`; zeros without such a row."""
        size = self.model.vocabulary_size
        found = [
            (place, rows[at - ahead][ahead])
            for place, at in enumerate(places)
            if at >= ahead and len(rows[at - ahead]) > ahead
        ]
        q_LV = torch.zeros(len(places), size, device=self.device)
        if found:
            q_LV[[place for place, _ in found]] = standardise(torch.stack([row for _, row in found]), sampling, size)
        return q_LV

    def _read(self, tokens: Sequence[int], most: int) -> None:
        """Have the model read the rest of `tokens`, and after each of them `most` positions."""
        session = self._session = self._session or self.model.start(self.prompt)
        while session.length < len(tokens):
            unread = list(tokens[session.length :][:TOKENS_AT_ONCE])
            known = len(unread)
            count = room(self.model, self.ids, session.length + known, most)
            positions = positions_after(self.ids[:count], range(known if count else 0), known)
            parents = [*range(ROOT, known - 1), *positions.parents] if count else None
            logits_LV = session.extend(unread + positions.tokens, parents)
            own_LV, ahead_LV = logits_LV.split([known, known * count])
            kept = ahead_LV.unflatten(0, (known, count))
            self._rows += torch.cat([own_LV.unsqueeze(1), kept], 1)[:, not self.own :].unbind()
            if count:
                session.select(range(known))
