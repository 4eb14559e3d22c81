"""A model that learns from verified tokens between prompts (Liu et al. 2023, *Online Speculative Decoding*).

At each rejected token, or at every token of the completion, the position and the target's logits there are stored,
which verification has just computed. Every few prompts `OnlineLearner` moves q towards p at these positions, and they
are dropped. Weights never change during a completion, so each token is tested with the q that it was drawn from, and
decoding is exact.

Shapes: T tokens, N positions, V tokens of the vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from specbench.algorithm.draft import AnyProposal
from specbench.engine.eager.model import EagerModel
from specbench.engine.reads import Reading
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft, ModelDraftSession
from specbench.records.prompt_sums import Lesson
from specbench.sampling import Sampling
from specbench.train.losses import distillation_loss


@dataclass(frozen=True)
class VerifiedText:
    """A completion, and what the target's verification computed at some of its tokens."""

    prompt: Prompt
    tokens: list[int]  # prefix and completion
    positions: list[int]  # of the tokens to learn from, in `tokens`
    logits_NV: Tensor  # the target's, for the token at each of the positions


class OnlineDraft(ModelDraft):
    """A model draft that learns from its rejections; `model` must not be shared, since its weights change."""

    def __init__(
        self,
        model: EagerModel,
        vocabulary_size: int,
        learner: OnlineLearner,
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

    def start(self, prompt: Prompt, sampling: Sampling) -> OnlineSession:
        return OnlineSession(self, prompt, sampling)

    def learn(self, prompt: Prompt, completion: Sequence[int]) -> Lesson:
        """Store the draft's rejections in `completion`, and update the weights when due."""
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
    """A model's session that records the target's logits when its tokens were rejected, or at every token."""

    def __init__(self, draft: OnlineDraft, prompt: Prompt, sampling: Sampling) -> None:
        model = draft.model
        super().__init__(model, model.start(prompt), sampling, draft.vocabulary_size, draft.confidence)
        self.draft, self.prompt = draft, prompt
        self.positions: list[int] = []
        self.rows: list[Tensor] = []
        self.rejected = 0

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[AnyProposal]:
        self.draft.at_work = self
        return super().proposing(tokens, gamma, generator)

    def after_verification(self, position: int, logits_LV: Tensor, rejected: bool) -> None:
        """Record the target's logits where a token was rejected, or at every token, from `position` on."""
        self.rejected += rejected
        size = len(logits_LV)
        first = (size - rejected) if self.draft.rejected_only else 0
        self.positions += range(position + first, position + size)
        self.rows += logits_LV[first:, : self.vocabulary_size].clone()


Optimiser = Literal["adamw", "sgd"]


class OnlineLearner:
    """Learns on a copy of `network` in fp32, whose steps bf16 would round away, and writes the weights back.

    By forward KL, as in `distill`, at the positions that the draft recorded.
    """

    def __init__(self, network: Any, lr: float, steps: int, optimiser: Optimiser, temperature: float) -> None:
        """An optimiser over the draft's weights, whose state lasts from one call of `learn` to the next; no dropout.

        `lr`: for AdamW times the RMS of each tensor, as in the recipes. `temperature`: of p and q in the loss.
        """
        from specbench.train.trainers import groups_by_size  # half a second, for transformers' Trainer

        self.network, self.steps, self.temperature = network, steps, temperature
        with torch.inference_mode(False):
            self.learning = copy.deepcopy(network).float().eval().requires_grad_(True)
        self.optimiser: torch.optim.Optimizer = (
            torch.optim.AdamW(groups_by_size(self.learning, lr, weight_decay=0.0))
            if optimiser == "adamw"
            else torch.optim.SGD(self.learning.parameters(), lr)
        )

    def learn(self, texts: Sequence[VerifiedText]) -> float:
        """Take the steps, each over all positions of `texts`, and write the weights into the draft's network.

        Returns:
            KL(p || q) before the first step, mean over all positions.
        """
        positions = sum(len(text.positions) for text in texts)
        losses = []
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(self.steps):
                self.optimiser.zero_grad(set_to_none=True)
                total = 0.0
                for text in texts:
                    loss = self._loss(text) * (len(text.positions) / positions)
                    loss.backward()
                    total += float(loss.detach())
                losses.append(total)
                self.optimiser.step()
        self._write_back()
        return losses[0]

    def _loss(self, text: VerifiedText) -> torch.Tensor:
        """KL(p || q), mean over the positions of one completion. The row before a token is what it was drawn from."""
        last, rows = max(text.positions), [position - 1 for position in text.positions]
        device = self.learning.device
        read_1T = torch.tensor([text.tokens[:last]], device=device)
        prompt = {"input_ids": read_1T}
        if self.learning.config.is_encoder_decoder:
            source_1S = torch.tensor([text.prompt.source], device=device)
            prompt = {"input_ids": source_1S, "decoder_input_ids": read_1T}
        q_NV = self.learning(**prompt, use_cache=False).logits[0, rows].float()
        p_NV = text.logits_NV.clone().to(device).float()
        counted = torch.zeros(1, len(rows), dtype=torch.long, device=device)
        t = self.temperature
        return distillation_loss(p_NV.unsqueeze(0) / t, q_NV.unsqueeze(0) / t, counted, 1.0)

    def _write_back(self) -> None:
        pairs = zip(self.network.parameters(), self.learning.parameters(), strict=True)
        for weight, learnt in pairs:
            with torch.inference_mode(weight.is_inference()), torch.no_grad():
                weight.copy_(learnt)
