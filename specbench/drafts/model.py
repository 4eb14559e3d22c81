"""A model as a draft: gamma steps of M_q, each drawn from its standardised distribution."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.acceptance import Proposal
from specbench.drafts.continuations import Continuations, Predicted
from specbench.models import Batch, Model, Prompt, Read, Reading, Session, answered
from specbench.sampling import BEFORE_ARGMAX, Sampling, draw_next, standardise


class ModelDraft:
    """Any `Model` that shares the target's vocabulary. `vocabulary_size` is the target's: q must have p's width."""

    def __init__(self, model: Model, vocabulary_size: int, confidence: float | None = None) -> None:
        self.model = model
        self.models = (model,)
        self.vocabulary_size = vocabulary_size
        self.confidence = confidence
        self.operations = model.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "ModelDraftSession":
        return ModelDraftSession(self.model, self.model.start(prompt), sampling, self.vocabulary_size, self.confidence)

    def in_batch(self, rows: int) -> "ModelDraft":
        return ModelDraft(Batch.of(self.model, rows), self.vocabulary_size, self.confidence)


class ModelDraftSession:
    """The draft model's session. It reads what it has not read yet at its next step, so after a fully accepted
    block, whose last token it never read, that step takes two tokens.

    With a `confidence` a proposal ends after the first token whose own q is below it (at T = 0: q before argmax). That
    token is part of the proposal. An end that depends on what was drawn so far is an end of the block like any other,
    and each token is still a draw from the q that it is tested with. Dropping the token would make the proposal a draw
    from the sure tokens alone, and no longer from q.
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

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        return answered(self.proposing(tokens, gamma, generator))

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposal]:
        sequence, session, ends, size = list(tokens), self.session, self.model.eos_ids, self.vocabulary_size
        rows: list[Tensor] = []
        for _ in range(gamma):
            logits_LV = yield Read(session, sequence[session.length :])
            token, row_1V = draw_next(logits_LV, self.sampling, size, generator)
            if row_1V is not None:
                rows.append(row_1V)
            sequence.append(token)
            if token in ends:
                break  # nothing can follow
            if self.confidence is not None and self._is_unsure(token, row_1V, logits_LV):
                break
        return Proposal(sequence[len(tokens) :], torch.cat(rows) if rows else None)

    def _is_unsure(self, token: int, row_1V: Tensor | None, logits_LV: Tensor) -> bool:
        """Whether the q of `token` is below the confidence: of the row that it was drawn from, and where it needed none
        (T = 0) of the row before argmax."""
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
