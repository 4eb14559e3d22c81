"""A model that learns from verified tokens between prompts (Liu et al. 2023, *Online Speculative Decoding*).

At each rejected token, or at every token of the completion, the position and the target's logits there are stored,
which verification has just computed. Every few prompts a `Learner` moves q towards p at these positions, and they are
dropped. Weights never change during a completion, so each token is tested with the q that it was drawn from, and
decoding is exact.

Shapes: N positions, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.drafts.base import Lesson, Proposed
from specbench.drafts.model import ModelDraft, ModelDraftSession
from specbench.models import Prompt, Reading
from specbench.models.eager import EagerModel
from specbench.sampling import Sampling


@dataclass(frozen=True)
class VerifiedText:
    """A completion, and what the target's verification computed at some of its tokens."""

    prompt: Prompt
    tokens: list[int]  # prefix and completion
    positions: list[int]  # of the tokens to learn from, in `tokens`
    logits_NV: Tensor  # the target's, for the token at each of the positions


class Learner(Protocol):
    """Updates the weights of a draft's network."""

    steps: int  # of the optimiser, at each call of `learn`

    def learn(self, texts: Sequence[VerifiedText]) -> float:
        """Take the steps, and write the weights into the draft's network.

        Returns:
            KL(p || q) before the first step, mean over all positions.
        """
        ...


class OnlineDraft(ModelDraft):
    """`model` must not be shared, since its weights change."""

    def __init__(
        self,
        model: EagerModel,
        vocabulary_size: int,
        learner: Learner,
        every: int,
        confidence: float | None = None,
        rejected_only: bool = True,
    ) -> None:
        """`every`: prompts from one update to the next. `rejected_only`: accepted tokens are not learnt from."""
        super().__init__(model, vocabulary_size, confidence)
        self.engine, self.learner, self.every = model, learner, every
        self.rejected_only = rejected_only
        self.at_work: OnlineSession | None = None  # the last session that proposed
        self._texts: list[VerifiedText] = []
        self._prompts = 0

    def start(self, prompt: Prompt, sampling: Sampling) -> "OnlineSession":
        return OnlineSession(self, prompt, sampling)

    def learn(self, prompt: Prompt, completion: Sequence[int]) -> Lesson:
        """See `Learns`."""
        session, self.at_work = self.at_work, None
        self._prompts += 1
        rejected = 0
        if session is not None and session.positions:
            assert session.prompt == prompt, "the last session that proposed is of another prompt"
            tokens = [*prompt.prefix, *completion]
            self._texts.append(VerifiedText(prompt, tokens, session.positions, torch.stack(session.rows)))
            rejected = session.rejected
        if self._prompts % self.every or not self._texts:
            return Lesson(rejected)
        texts, self._texts = self._texts, []
        loss = self.learner.learn(texts)
        self.engine.weights_changed()
        return Lesson(rejected, sum(len(text.positions) for text in texts), self.learner.steps, loss)


class OnlineSession(ModelDraftSession):
    """A model's session that records the target's logits where its tokens were rejected, or at every token."""

    def __init__(self, draft: OnlineDraft, prompt: Prompt, sampling: Sampling) -> None:
        model = draft.model
        super().__init__(model, model.start(prompt), sampling, draft.vocabulary_size, draft.confidence)
        self.draft, self.prompt = draft, prompt
        self.positions: list[int] = []
        self.rows: list[Tensor] = []
        self.rejected = 0

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposed]:
        self.draft.at_work = self
        return super().proposing(tokens, gamma, generator)

    def after_verification(self, position: int, logits_LV: Tensor, rejected: bool) -> None:
        """See `SeesVerification`."""
        self.rejected += rejected
        size = len(logits_LV)
        first = (size - rejected) if self.draft.rejected_only else 0
        self.positions += range(position + first, position + size)
        self.rows += logits_LV[first:, : self.vocabulary_size].clone()
