"""Training P-EAGLE's layers on a frozen target.

2602.01469: after places of each text stand masked entries, and the tokens of all depths are held to the target's
distribution in one pass. A place keeps its k-th masked entry only if it has the one before, and fewer places do with
each depth (conditional drop of tokens): the later entries are many, and each is much like the others.

Shapes: B texts, T entries, D the target's width, V tokens of the vocabulary.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from specbench.errors import UserError
from specbench.methods.at_once import all_places, sampled_places
from specbench.methods.eagle.network import EagleShape
from specbench.methods.eagle.train import EagleLearner, TargetOutput, borrow_weights
from specbench.methods.peagle.network import LaterLayer, PEagle, PEagleShape
from specbench.train.logits import FromStates
from specbench.train.recipe_schema import Recipe
from specbench.train.target_texts import special_ids

START = 0.25  # of what layers after the first add at the start


class PEagleLearner(EagleLearner):
    """The layers, and the frozen target that they learn from. Only the layers' weights are its parameters."""

    trained: PEagle

    def made(self, shape: EagleShape, target: PreTrainedModel, recipe: Recipe) -> PEagle:
        plan = recipe.eagle
        if target.config.is_encoder_decoder:
            raise UserError("distill.target: peagle is for decoder-only targets; use recipe=eagle3")
        mask = special_ids(target)[0] if plan.mask is None else plan.mask
        made = PEagle(PEagleShape(**{**vars(shape), "layers": plan.layers, "mask": mask}))
        later: list[LaterLayer] = list(made.later)  # type: ignore[arg-type]
        for one in later:
            borrow_weights(one.layer, target)
            for projection in (one.layer.self_attn.o_proj, one.layer.mlp.down_proj):
                projection.weight.data *= START
        return made

    def loss_of(self, output: TargetOutput, labels_BT: torch.Tensor) -> torch.Tensor:
        labels_BT = self.of_rows(labels_BT)[:, 1:]  # entry j is about what the target computes at j + 1
        length, device = labels_BT.shape[1], labels_BT.device
        if length < 1:  # texts of one token
            return self.trained.fc.weight.sum() * 0.0
        places = sampled_places(length, self.plan.steps, self.plan.share, device)
        total, weights = self.trained.mask_hidden.sum() * 0.0, 0.0
        for depth, states_BPD in enumerate(self._along(output, places)):
            about_P = places[depth - 1] + depth if depth else torch.arange(length, device=device)
            weight = self.plan.decay**depth
            counted_BP = labels_BT[:, about_P]
            if not (counted_BP != -100).any():
                break
            loss = self._token_loss(output.p_BTV[:, about_P + 1], states_BPD, counted_BP)
            total, weights = total + weight * loss, weights + weight
        return total / max(weights, 1e-9)

    def logits(self, output: TargetOutput, ahead: int) -> FromStates:
        length = output.ids_BT.shape[1] - 1
        places = all_places(length, ahead, output.ids_BT.device)
        return FromStates(self._along(output, places)[-1].to(self.target.dtype), self.trained.logits)

    def _along(self, output: TargetOutput, places: list[torch.Tensor]) -> list[torch.Tensor]:
        embedded_BTD = self.trained.embed(output.ids_BT[:, 1:], 1)
        return self.trained.along(output.features_BTF[:, :-1], embedded_BTD, places)
