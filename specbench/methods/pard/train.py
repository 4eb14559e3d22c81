"""Training a model to draft in one forward pass, on a frozen target.

2504.18583: copies of the mask token follow places of each text, and the model's rows after them are trained on the
target's distribution at the tokens that they stand for. With each depth, fewer places have a mask token (conditional
drop of tokens). The model starts from a draft of the target's vocabulary, whose rows after the text's own tokens are
also trained.

Shapes: B texts, T tokens, P places, L entries, V tokens of the vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from specbench.engine.layout import mask_bias
from specbench.errors import UserError
from specbench.methods.at_once import all_places, masked_entries, sampled_places
from specbench.methods.pard.config import FIELD
from specbench.train import networks
from specbench.train.frozen import FrozenTargetLearner, Seen
from specbench.train.logits import Logits
from specbench.train.losses import distillation_loss
from specbench.train.recipe_schema import Recipe
from specbench.train.target_texts import special_ids


class TargetOutput(NamedTuple):
    """What the target read and computed; its logits at t are about the token after t."""

    p_BTV: Logits
    ids_BT: torch.Tensor


class PardLearner(FrozenTargetLearner[TargetOutput]):
    """The model, and the frozen target that it learns from. Only the model's weights are its parameters."""

    trained: Any
    predictor = "drafted token"
    first, soonest = 2, 0

    def __init__(self, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> None:
        super().__init__(target, recipe)
        self.plan, self.measured = recipe.pard, recipe.pard.steps
        if target.config.is_encoder_decoder:
            raise UserError("distill.target: pard is for decoder-only targets; use recipe=specdec or distill")
        start, theirs = recipe.model.start_from or "", recipe.distill.target or ""
        network = networks.load(start, recipe.model.family, revision=recipe.model.revision)
        given, own = (networks.load_tokenizer(place).get_vocab() for place in (theirs, start))
        networks.check_same_vocabulary(given, own, theirs)
        self.mask = special_ids(target)[0] if self.plan.mask is None else self.plan.mask
        if not 0 <= self.mask < network.config.vocab_size:
            raise UserError(
                f"pard.mask is {self.mask}: it must be a token of the model, below {network.config.vocab_size}"
            )
        self.trained = network.to(target.device)

    def state_dict(self, *args: Any, **told: Any) -> Any:
        """Without the head if it is the embeddings: a checkpoint holds each tensor once."""
        state = super().state_dict(*args, **told)
        held = {weight.data_ptr(): name for name, weight in reversed(state.items())}
        return {name: weight for name, weight in state.items() if held[weight.data_ptr()] == name}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)

    def output_of(self, seen: Seen, given: dict[str, torch.Tensor]) -> TargetOutput:
        return TargetOutput(seen.p_BTV, seen.ids_BT)

    def loss_of(self, output: TargetOutput, labels_BT: torch.Tensor) -> torch.Tensor:
        labels_BT = self.of_rows(labels_BT)
        length, device = labels_BT.shape[1], labels_BT.device
        places = sampled_places(length, self.plan.steps, self.plan.share, device)
        total, weights = torch.zeros((), device=device), 0.0
        for depth, q_BPV in enumerate(self._along(output, places)):
            about_P = places[depth - 1] + depth if depth else torch.arange(length, device=device)
            counted_BP, weight = labels_BT[:, about_P], self.plan.decay**depth
            if not (counted_BP != -100).any():
                break
            loss = distillation_loss(output.p_BTV[:, about_P], q_BPV, counted_BP, self.kl_weight)
            total, weights = total + weight * loss, weights + weight
        return total / max(weights, 1e-9)

    def logits(self, output: TargetOutput, ahead: int) -> torch.Tensor:
        length = output.ids_BT.shape[1]
        return self._along(output, all_places(length, ahead + 1, output.ids_BT.device))[-1]

    def _along(self, output: TargetOutput, places: list[torch.Tensor]) -> list[torch.Tensor]:
        """Logits [B, T, V] after the tokens of the texts, then [B, P, V] after the mask tokens of each depth."""
        rows, length = output.ids_BT.shape
        positions_L, seen_LL = masked_entries(length, places, output.ids_BT.device)
        masked_BM = output.ids_BT.new_full((rows, len(positions_L) - length), self.mask)
        dtype = torch.bfloat16 if torch.is_autocast_enabled(output.ids_BT.device.type) else self.trained.dtype
        logits_BLV = self.trained(
            torch.cat([output.ids_BT, masked_BM], 1), position_ids=positions_L.expand(rows, -1), use_cache=False,
            attention_mask=mask_bias(seen_LL, dtype).expand(rows, 1, -1, -1),
        ).logits  # fmt: skip
        return list(logits_BLV.split([length, *map(len, places)], 1))

    def save(self, recipe: Recipe, folder: Path) -> None:
        """A folder as the model's own, whose config says the mask token."""
        self.trained.config.update({FIELD: self.mask, "spd_type": "pard"})
        networks.save(self.trained, networks.load_tokenizer(recipe.distill.target or ""), folder)
