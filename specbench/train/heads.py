"""Training heads on a frozen target: what every kind of them shares.

Heads learn towards the target's own distribution at the token that they predict. For T5 on texts that the target wrote
(`DistillPlan`), for decoder-only targets on the data. It does not know files or the Trainer.

Shapes: B texts, T tokens, D the target's width, V tokens of the vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench.models.saved_heads import SavedHeads, fingerprint
from specbench.train.held_out import prompts
from specbench.train.places import short_name
from specbench.train.quality import alpha
from specbench.train.rows import Row
from specbench.train.schema import Recipe


class Seen(NamedTuple):
    """What the target read and computed. Token t + 1 of `ids_BT` is the one after state t, and its logits are row t of
    `p_BTV`."""

    states_BTD: torch.Tensor  # what its head reads
    p_BTV: torch.Tensor  # its logits
    ids_BT: torch.Tensor  # what its decoder read


class HeadLearner(nn.Module):
    """Heads, and the frozen target that they learn from. Only the heads are its parameters. `later` is how many tokens
    after the next they predict."""

    heads: SavedHeads
    later: int
    first: int  # the number that tables give the head of the token after the next

    def __init__(self, target: PreTrainedModel, kl_weight: float) -> None:
        super().__init__()
        self.kl_weight = kl_weight
        self._target = (target.eval().requires_grad_(False),)  # in a tuple: no module of this one

    @property
    def target(self) -> PreTrainedModel:
        return self._target[0]

    @property
    def width(self) -> int:
        """D."""
        width: int = self.target.get_output_embeddings().weight.shape[1]
        return width

    @abstractmethod
    def loss(self, seen: Seen, labels_BT: torch.Tensor) -> torch.Tensor:
        """The loss on one batch. Label t is the token that row t of `seen.p_BTV` is about; -100 does not count."""

    @abstractmethod
    def logits(self, seen: Seen, ahead: int) -> torch.Tensor:
        """[B, T - ahead, V] of the head that predicts `ahead` tokens after the next: row t from state t, about label
        t + ahead."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        decoder_input_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The loss on one batch, as the Trainer takes it."""
        read = {"input_ids": input_ids, "attention_mask": attention_mask}
        if decoder_input_ids is not None:
            read["decoder_input_ids"] = decoder_input_ids
        seen = self.read(read)
        if not self.target.config.is_encoder_decoder:  # row t is about token t + 1
            seen, labels = seen._replace(states_BTD=seen.states_BTD[:, :-1], p_BTV=seen.p_BTV[:, :-1]), labels[:, 1:]
        return {"loss": self.loss(seen, labels)}

    def as_draft(self, ahead: int) -> Any:
        """The head `ahead` in the place of a model: its logits stand where the token that they are about does."""

        def logits(**read: torch.Tensor) -> SimpleNamespace:
            seen = self.read(read)
            q_BTV = torch.zeros_like(seen.p_BTV)
            q_BTV[:, ahead:] = self.logits(seen, ahead)
            return SimpleNamespace(logits=q_BTV)

        logits.config, logits.device = self.target.config, self.target.device  # type: ignore[attr-defined]
        return logits

    def read(self, given: dict[str, torch.Tensor]) -> Seen:
        """Run the target on one batch."""
        states: list[torch.Tensor] = []
        hook = self.target.get_output_embeddings().register_forward_pre_hook(lambda _, read: states.append(read[0]))
        try:
            with torch.no_grad():
                logits_BTV = self.target(**given).logits
        finally:
            hook.remove()
        return Seen(states[-1], logits_BTV, given.get("decoder_input_ids", given["input_ids"]))

    def project(self, states: torch.Tensor) -> torch.Tensor:
        """The target's own output projection."""
        logits: torch.Tensor = self.target.get_output_embeddings()(states.to(self.target.dtype))
        return logits

    def save(self, recipe: Recipe, folder: Path) -> None:
        """The heads in bf16, with what they belong to."""
        name = short_name(recipe.distill.target or "")
        self.heads.to(torch.bfloat16).save(folder, name, fingerprint(self.target))

    def measure(self, recipe: Recipe, held: list[Row], tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
        """α of each head, for the rows held out and each test file of the recipe."""
        self.heads.to(self.target.dtype)
        found = {}
        for name, sources in prompts(recipe, held, tokenizer).items():
            for sampled in (False, True):
                for ahead in range(1, self.later + 1):
                    overlap = alpha(
                        self.target, self.as_draft(ahead), sources,
                        sampled=sampled, max_new_tokens=recipe.data.max_target, seed=recipe.seed,
                    )  # fmt: skip
                    place = f"α of head {ahead + self.first - 1}, {name}, T={int(sampled)}"
                    found[place] = f"{overlap} on {overlap.tokens:,} tokens"
        return found
