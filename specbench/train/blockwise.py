"""Training blockwise heads: the target stays as it is, small layers learn to predict what follows its next token.

Stern, Shazeer, Uszkoreit 2018, with frozen base parameters; as there, each batch trains one head, drawn at random. They
learn towards the target's own distribution at the token they predict, on texts that the target wrote (`DistillPlan`).
It does not know files or the Trainer.

Shapes: B texts, T tokens, D the target's width, V tokens of the vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench.models import Heads
from specbench.models.heads import fingerprint
from specbench.train.distill import distillation_loss
from specbench.train.held_out import prompts
from specbench.train.places import short_name
from specbench.train.quality import alpha
from specbench.train.rows import Row
from specbench.train.schema import Recipe


class Learner(nn.Module):
    """The heads, and the frozen target that they learn from. Only the heads are its parameters."""

    def __init__(self, target: PreTrainedModel, heads: int, hidden: int | None, kl_weight: float) -> None:
        super().__init__()
        width = target.get_output_embeddings().weight.shape[1]
        self.heads = Heads(heads, width, hidden or width).to(target.device)
        self.kl_weight = kl_weight
        self._target = (target.eval().requires_grad_(False),)  # in a tuple: no module of this one

    @property
    def target(self) -> PreTrainedModel:
        return self._target[0]

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        decoder_input_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The loss of one head on one batch, as the Trainer takes it."""
        read = {"input_ids": input_ids, "attention_mask": attention_mask}
        if decoder_input_ids is not None:
            read["decoder_input_ids"] = decoder_input_ids
        states_BTD, p_BTV = self._read(read)
        if not self.target.config.is_encoder_decoder:  # logits at t are about token t + 1
            states_BTD, p_BTV, labels = states_BTD[:, :-1], p_BTV[:, :-1], labels[:, 1:]
        ahead = min(int(torch.randint(1, self.heads.heads, ())), labels.shape[1] - 1)
        if ahead < 1:  # texts of one token
            return {"loss": self.heads.out_KHD.sum() * 0.0}
        q_BTV = self._logits(states_BTD[:, :-ahead], ahead)
        return {"loss": distillation_loss(p_BTV[:, ahead:], q_BTV, labels[:, ahead:], self.kl_weight)}

    def as_draft(self, ahead: int) -> Any:
        """Head `ahead` + 1 in the place of a model: its logits stand where the token that they are about does."""

        def logits(**read: torch.Tensor) -> SimpleNamespace:
            states_BTD, p_BTV = self._read(read)
            q_BTV = torch.zeros_like(p_BTV)
            q_BTV[:, ahead:] = self._logits(states_BTD[:, :-ahead], ahead)
            return SimpleNamespace(logits=q_BTV)

        logits.config, logits.device = self.target.config, self.target.device  # type: ignore[attr-defined]
        return logits

    def _read(self, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the target's head reads [B, T, D], and its logits [B, T, V]."""
        seen: list[torch.Tensor] = []
        hook = self.target.get_output_embeddings().register_forward_pre_hook(lambda _, read: seen.append(read[0]))
        try:
            with torch.no_grad():
                logits_BTV = self.target(**given).logits
        finally:
            hook.remove()
        return seen[-1], logits_BTV

    def _logits(self, states_BTD: torch.Tensor, ahead: int) -> torch.Tensor:
        read_BTD = self.heads(states_BTD.flatten(0, 1), slice(ahead - 1, ahead)).view_as(states_BTD)
        logits_BTV: torch.Tensor = self.target.get_output_embeddings()(read_BTD.to(self.target.dtype))
        return logits_BTV


def save(learner: Learner, recipe: Recipe, folder: Path) -> None:
    """The heads in bf16, with what they belong to."""
    name = short_name(recipe.distill.target or "")
    learner.heads.to(torch.bfloat16).save(folder, name, fingerprint(learner.target))


def measure(learner: Learner, recipe: Recipe, held: list[Row], tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """α of each head, for the rows held out and each test file of the recipe."""
    learner.heads.to(learner.target.dtype)
    found = {}
    for name, sources in prompts(recipe, held, tokenizer).items():
        for sampled in (False, True):
            for ahead in range(1, learner.heads.heads):
                overlap = alpha(
                    learner.target, learner.as_draft(ahead), sources,
                    sampled=sampled, max_new_tokens=recipe.data.max_target, seed=recipe.seed,
                )  # fmt: skip
                found[f"α of head {ahead + 1}, {name}, T={int(sampled)}"] = f"{overlap} on {overlap.tokens:,} tokens"
    return found
