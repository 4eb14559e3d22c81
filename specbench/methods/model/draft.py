"""A model as a draft: gamma steps of M_q, each drawn from its standardised distribution."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import PendingProposal, Proposal
from specbench.algorithm.continuations import Continuations, Predicted
from specbench.algorithm.draft import Proposed
from specbench.engine.batch import Batch
from specbench.engine.session import Model, Prompt, Read, Reading, RolloutSession, RollsOut, Session, answered
from specbench.engine.translated import TranslatedModel
from specbench.sampling import BEFORE_ARGMAX, Choice, Sampling, checked, standardise


class ModelDraft:
    """Any `Model` that reads and predicts the target's tokens; a `TranslatedModel` for another vocabulary.

    `vocabulary_size` is the target's: q must have p's width.
    """

    def __init__(self, model: Model, vocabulary_size: int, confidence: float | None = None) -> None:
        self.model = model
        self.models = (model,)
        self.vocabulary_size = vocabulary_size
        self.confidence = confidence
        self.operations = model.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "ModelDraftSession":
        return ModelDraftSession(self.model, self.model.start(prompt), sampling, self.vocabulary_size, self.confidence)

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        if isinstance(self.model, RollsOut) and self.confidence is None:
            self.model.expect_rollouts(Choice(sampling, self.vocabulary_size), gammas)

    def in_batch(self, rows: int) -> "ModelDraft":
        model = self.model.in_batch(rows) if isinstance(self.model, TranslatedModel) else Batch.of(self.model, rows)
        return ModelDraft(model, self.vocabulary_size, self.confidence)


class ModelDraftSession:
    """The draft model's session.

    It reads unread tokens at its next step, so after a fully accepted block, whose last token it has not read, that
    step takes two tokens. If the model's engine has captured them, the steps of a proposal are one run, and the
    proposal remains on the device (`PendingProposal`).

    With a `confidence` a proposal ends after the first token whose own q is below it (at T = 0: q before argmax). That
    token is part of the proposal. An end that depends on earlier draws is an end of the block like any other, and each
    token is still a draw from the q that it is tested with. If the token were dropped, the proposal would be drawn from
    the confident tokens only, not from q.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        sampling: Sampling,
        vocabulary_size: int,
        confidence: float | None = None,
    ) -> None:
        self.model = model
        self.session = session
        self.sampling = sampling
        self.vocabulary_size = vocabulary_size
        self.confidence = confidence
        self.choice = Choice(sampling, vocabulary_size)
        # An end by confidence saves the steps that would follow it: there each token is looked at.
        self.rolling: RolloutSession | None = None
        if confidence is None and isinstance(session, RolloutSession) and isinstance(model, RollsOut):
            self.rolling, self.rolls_on_host = session, model.rolls_on_host
            self.ends_E = torch.tensor(sorted(model.eos_ids), dtype=torch.long, device=model.device)

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        proposal = answered(self.proposing(tokens, gamma, generator))
        return proposal.brought() if isinstance(proposal, PendingProposal) else proposal

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposed]:
        # All random numbers first: which of them a token takes then depends on neither the engine nor an early end.
        uniform_G = self.choice.uniforms(gamma, generator)
        if self.rolling is not None and gamma:
            unread = tokens[self.session.length :]
            if (rolled := self.rolling.rollout(unread, self.choice, gamma, uniform_G)) is not None:
                if not self.rolls_on_host:
                    return PendingProposal(*rolled, self.ends_E)
                tokens_G, rows_GV = rolled
                return Proposal(checked(tokens_G.tolist()), rows_GV, asked=gamma)
        sequence, session, ends = list(tokens), self.session, self.model.eos_ids
        rows: list[Tensor] = []
        for uniform_1 in [None] * gamma if uniform_G is None else uniform_G.split(1)[:gamma]:
            logits_LV = yield Read(session, sequence[session.length :])
            token, row_1V = self.choice(logits_LV, uniform_1)
            if row_1V is not None:
                rows.append(row_1V)
            sequence.append(token)
            if token in ends:
                break  # nothing can follow
            if self.confidence is not None and self._is_unsure(token, row_1V, logits_LV):
                break
        return Proposal(sequence[len(tokens) :], torch.cat(rows) if rows else None, asked=gamma)

    def _is_unsure(self, token: int, row_1V: Tensor | None, logits_LV: Tensor) -> bool:
        """Whether the q of `token` is below the confidence.

        q is the row that it was drawn from, or, where it needed none (T = 0), the row before argmax.
        """
        if row_1V is None:
            row_1V = standardise(logits_LV[-1:], BEFORE_ARGMAX, self.vocabulary_size)
        return float(row_1V[0, token]) < (self.confidence or 0.0)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        return self._predicted(self.session.extend(tokens[self.session.length :])[-1:])

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        return self._predicted(self.session.extend(tokens, parents))

    def _predicted(self, logits_LV: Tensor, operations: float | None = None) -> Predicted:
        return Predicted(logits_LV, self.vocabulary_size, self.sampling, operations)

    def select(self, path: Sequence[int]) -> None:
        self.session.select(path)

    def rollback(self, length: int) -> None:
        self.session.rollback(length)

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        self.session.rollback(prefix_length - 1)  # one that shares the target's cache begins where the target ended
        logits_LV = self.session.extend(tokens[self.session.length : -1])
        rows = len(tokens) - prefix_length
        return standardise(logits_LV[-rows:], self.sampling, self.vocabulary_size)
