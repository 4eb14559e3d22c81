"""Drafts whose forward pass gives all tokens of a proposal, each row of q independent of the tokens drafted before it.

Shapes: K tokens ahead, V logits.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Continuations, Found, Predicted
from specbench.algorithm.draft import ScoresAhead
from specbench.engine.session import Model, up_to_end
from specbench.sampling import Choice, Sampling, checked, drawn, most_likely, standardise


class AtOnceDraft(Protocol):
    """What a session of such a draft needs to know of it."""

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
        """Logits of at most `most` tokens after `tokens`; None where nothing is predicted yet."""

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
        """The continuations `depths` tokens ahead; none beyond the last row, or where there are no rows."""
        size, ahead_KV = self.draft.target.vocabulary_size, self._ahead_KV
        if ahead_KV is None or max(depths) >= len(ahead_KV):
            return Found([()] * len(depths), size, self.draft.device)
        return Predicted(self.after_depths(ahead_KV, depths), size, self.sampling, operations)

    def after_depths(self, ahead_KV: Tensor, depths: Sequence[int]) -> Tensor:
        """Logits [N, V] after nodes of these depths, from those of each depth."""
        return ahead_KV[depths]


def independent_proposal(logits_GV: Tensor, sampling: Sampling, target: Model, generator: torch.Generator) -> Proposal:
    """A token from each of these rows, up to the end of the text."""
    size, ends = target.vocabulary_size, target.eos_ids
    uniform_G = Choice(sampling, size).uniforms(len(logits_GV), generator)
    if uniform_G is None:
        return Proposal(up_to_end(most_likely(logits_GV, size, len(logits_GV)), ends))
    q_GV = standardise(logits_GV, sampling, size)
    drafted = up_to_end(checked(drawn(q_GV, uniform_G).tolist()), ends)
    return Proposal(drafted, q_GV[: len(drafted)])
