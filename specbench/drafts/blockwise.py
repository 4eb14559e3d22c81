"""Blockwise drafting: heads on the target's own last state predict the tokens after the next, all at once.

Stern, Shazeer, Uszkoreit 2018. The run that verifies one block also gives the state that the next one is predicted
from (their "combined scoring and proposal"), so a pass is one run of the target and one small layer. Head 1 is the
target's own, and its token is the one that every pass emits itself: with k heads at most k - 1 tokens are drafted.

Given the context the heads are independent of each other: a token's q is its head's distribution and does not depend on
the draft tokens before it, so Algorithm 1 applies unchanged. The first pass of a completion may have no state yet; then
it drafts nothing.

Shapes: G drafted tokens, L positions, D the target's width, V tokens of the vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from specbench.acceptance import Proposal
from specbench.drafts.base import after_zeros
from specbench.drafts.continuations import Continuations, Found, Predicted
from specbench.models import Heads, Model, Prompt, Session, StatefulSession, up_to_end
from specbench.sampling import Sampling, draw, standardise


class OnStates(ABC):
    """A draft whose heads predict from the states that sessions of `target` return."""

    def __init__(self, target: Model, operations: float) -> None:
        """`operations` are those of one head at one position."""
        self.target, self.operations = target, operations

    @property
    @abstractmethod
    def later(self) -> int:
        """Tokens after the next that the heads predict."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the heads are."""

    @abstractmethod
    def logits(self, states_ND: Tensor, which: slice) -> Tensor:
        """[heads, N, V] of the heads `which`, 0 being that of the token after the next."""

    def start(self, prompt: Prompt, sampling: Sampling) -> "BlockwiseSession":
        """On a session of its own, in which it must read the text itself."""
        return self.start_on(self.target.start(prompt), prompt, sampling)

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "BlockwiseSession":
        return BlockwiseSession(self, cast(StatefulSession, session), sampling)


class BlockwiseDraft(OnStates):
    """`heads` on the states of `target`; `project` is its output projection."""

    def __init__(self, target: Model, heads: Heads, project: Callable[[Tensor], Tensor], rows: int) -> None:
        """`rows` is how many logits `project` gives."""
        self.heads = heads
        self.project = project
        layer = sum(weight.numel() for weight in heads.parameters()) // (heads.heads - 1)
        super().__init__(target, 2.0 * (layer + rows * heads.width))

    @property
    def later(self) -> int:
        return self.heads.heads - 1

    @property
    def device(self) -> torch.device:
        return self.heads.device

    def logits(self, states_ND: Tensor, which: slice) -> Tensor:
        return self.project(self.heads(states_ND, which))


class BlockwiseSession:
    """A view of the target's session, without state of its own."""

    stops_at_end = True

    def __init__(self, draft: OnStates, session: StatefulSession, sampling: Sampling) -> None:
        self.draft = draft
        self.session = session
        self.sampling = sampling
        self._heads_KV: Tensor | None = None  # logits of heads 2, 3, ..., while a tree is grown
        self._depths: list[int] = []  # of its nodes
        # States of the latest tokens read, from which scoring of the next part continues.
        self._before_ND = session.states(session.length - 1, session.length) if session.length else None

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        state_1D, count = self._state(tokens), min(gamma, self.draft.later)
        if state_1D is None or count == 0:
            return Proposal([])
        q_GV = self._q(state_1D, slice(count))
        drafted = up_to_end([draw(q_V, generator) for q_V in q_GV], self.draft.target.eos_ids)
        return Proposal(drafted, q_GV[: len(drafted)])

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        state_1D = self._state(tokens)
        self._depths = []
        heads = 0 if state_1D is None else min(levels, self.draft.later)
        self._heads_KV = None if state_1D is None else self._logits(state_1D, slice(heads))
        return self._after([0], heads * self.draft.operations)

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        """The continuations are the same after every node of a depth."""
        first = len(self._depths)
        for parent in parents:
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)
        return self._after(self._depths[first:], 0.0)

    def _after(self, depths: Sequence[int], operations: float) -> Continuations:
        """Nothing beyond the last head, or without a state."""
        size, heads_KV = self.draft.target.vocabulary_size, self._heads_KV
        if heads_KV is None or max(depths) >= len(heads_KV):
            return Found([()] * len(depths), size, self.draft.device)
        return Predicted(heads_KV[depths], size, self.sampling, operations)

    def select(self, path: Sequence[int]) -> None:
        """The target's session selects."""

    def rollback(self, length: int) -> None:
        """Nothing to do: the target rolls back its own session."""

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """q of head 2, the first token of a proposal, at each position; a row of zeros where there is no state.

        The further heads agree less.
        """
        return next(self.score_ahead(tokens, prefix_length, 1))

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        self._read(tokens[:-1])
        states_LD = self.session.states(prefix_length - 1, len(tokens) - 1)
        assert states_LD is not None, "the target has read this text in other parts than it is scored in"
        before_ND = states_LD[:0] if self._before_ND is None else self._before_ND
        self._before_ND = torch.cat([before_ND, states_LD])[-most:]
        heads = min(most, self.draft.later)
        known_ND, length = torch.cat([before_ND, states_LD[:-1]]), len(states_LD)
        return (self._q_ahead(known_ND, length, ahead, tokens) for ahead in range(heads))

    def _q_ahead(self, states_ND: Tensor, length: int, ahead: int, tokens: Sequence[int]) -> Tensor:
        """q [length, V] of head `ahead` + 2 for the last of `tokens`; zeros where there is no state.

        It is computed from the states `ahead` tokens before those of head 2, whose last is the last of `states_ND`.
        """
        known_ND = states_ND[: max(0, len(states_ND) - ahead)][-length:]
        if not len(known_ND):
            return torch.zeros(length, self.draft.target.vocabulary_size, device=states_ND.device)
        return after_zeros(self._q_in_text(known_ND, ahead, tokens), length)

    def _q_in_text(self, states_ND: Tensor, ahead: int, tokens: Sequence[int]) -> Tensor:
        """q [N, V] of head `ahead` + 2 for the last N of `tokens`."""
        return self._q(states_ND, slice(ahead, ahead + 1))

    def _state(self, tokens: Sequence[int]) -> Tensor | None:
        """[1, D] of the last token read, after reading all but the newest; None where no token was read before."""
        read = len(tokens) - 1  # the newest token has not been read: its own head drew it
        self._read(tokens[:read])
        return self.session.states(read - 1, read) if read else None

    def _read(self, tokens: Sequence[int]) -> None:
        if self.session.length < len(tokens):
            self.session.extend(tokens[self.session.length :])

    def _q(self, states_ND: Tensor, which: slice) -> Tensor:
        """Rows [heads x N, V], head by head."""
        return standardise(self._logits(states_ND, which), self.sampling, self.draft.target.vocabulary_size)

    def _logits(self, states_ND: Tensor, which: slice) -> Tensor:
        with torch.no_grad():
            return self.draft.logits(states_ND, which).flatten(0, 1)
