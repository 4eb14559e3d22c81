"""A model as a draft: gamma steps of M_q, each drawn from its standardised distribution."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.drafts.base import Proposal
from specbench.models import Model, Prompt, Session
from specbench.sampling import Sampling, draw, most_likely, standardise


class ModelDraft:
    """Any `Model` that shares the target's vocabulary. `vocabulary_size` is the target's: q must have p's width."""

    def __init__(self, model: Model, vocabulary_size: int, confidence: float | None = None) -> None:
        self.model = model
        self.vocabulary_size = vocabulary_size
        self.confidence = confidence
        self.operations = model.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "ModelDraftSession":
        return ModelDraftSession(self.model, self.model.start(prompt), sampling, self.vocabulary_size, self.confidence)


class ModelDraftSession:
    """The draft model's session. It reads what it has not read yet at its next step, so after a fully accepted
    block, whose last token it never read, that step takes two tokens.

    With a `confidence` a proposal ends behind the first token whose own q is below it (at T = 0: q before argmax). That
    token stays in the proposal. An end that rests on what was drawn so far is an end of the block like any other, and
    each token in it is still a draw from the q that it is judged by. To drop the token instead would leave those that
    stay a draw from the sure ones alone, and no longer from q.
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
        sequence, session, ends = list(tokens), self.session, self.model.eos_ids
        size, greedy = self.vocabulary_size, self.sampling.temperature == 0
        rows: list[Tensor] = []
        for _ in range(gamma):
            logits_LV = session.extend(sequence[session.length :])
            if greedy:
                (token,) = most_likely(logits_LV, size)
            else:
                rows.append(standardise(logits_LV[-1:], self.sampling, size))
                token = draw(rows[-1][0], generator)
            sequence.append(token)
            if token in ends:
                break  # nothing can follow
            if self.confidence is not None and self._q(logits_LV[-1:] if greedy else rows[-1], token) < self.confidence:
                break
        return Proposal(sequence[len(tokens) :], torch.cat(rows) if rows else None)

    def _q(self, row_1V: Tensor, token: int) -> float:
        """The probability of `token`, from the row that it was taken from: standardised, or at T = 0 logits."""
        if self.sampling.temperature == 0:
            row_1V = row_1V[..., : self.vocabulary_size].float().softmax(-1)
        return float(row_1V[0, token])

    def rollback(self, length: int) -> None:
        self.session.rollback(length)

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        self.session.rollback(prefix_length - 1)  # one that shares the target's cache begins where the target ended
        logits_LV = self.session.extend(tokens[self.session.length : -1])
        rows = len(tokens) - prefix_length
        return standardise(logits_LV[-rows:], self.sampling, self.vocabulary_size)
