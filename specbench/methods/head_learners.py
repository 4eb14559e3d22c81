"""Training blockwise, Medusa's and Hydra's heads on a frozen target.

Heads learn towards the target's own distribution at the token that they predict (forward KL): for T5 on texts that the
target wrote (`DistillPlan`), for decoder-only targets on the data. Each batch trains one blockwise head, drawn at
random (Stern, Shazeer, Uszkoreit 2018), or all of Medusa's or Hydra's, the loss of head k with weight decay^k (.8^k in
Cai et al. 2024, "Medusa-1"). Medusa's own recipe takes the cross-entropy of the tokens, whose gradient is the same in
expectation over the target's own completions.

Shapes: B texts, T tokens, N counted positions, D the target's width, J tokens that a head reads, M numbers of each, V
tokens of the vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from specbench.engine.saved_heads import SavedHeads
from specbench.methods.blockwise.draft import BlockwiseHeads
from specbench.methods.hydra.network import HydraHeads
from specbench.methods.medusa.draft import MedusaHeads
from specbench.train.frozen import FrozenTargetLearner, Seen
from specbench.train.logits import Logits
from specbench.train.losses import distillation_loss
from specbench.train.recipe_schema import Recipe


class TargetOutput(NamedTuple):
    """The target's input and output. Token t + 1 of `ids_BT` follows state t, and its logits are row t of `p_BTV`."""

    states_BTD: torch.Tensor  # what its head reads
    p_BTV: Logits
    ids_BT: torch.Tensor  # what its decoder read


class HeadLearner(FrozenTargetLearner[TargetOutput]):
    """Heads, and the frozen target that they learn from. Only the heads are its parameters."""

    predictor = "head"

    def __init__(self, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> None:
        super().__init__(target, recipe)
        logits, width = target.get_output_embeddings().weight.shape
        self.trained = self.new_heads(recipe, width, logits).to(target.device)

    @abstractmethod
    def new_heads(self, recipe: Recipe, width: int, logits: int) -> SavedHeads:
        """The heads of `recipe` for a target whose last state has `width` numbers, and whose head so many logits."""

    def output_of(self, seen: Seen, given: dict[str, torch.Tensor]) -> TargetOutput:
        return TargetOutput(seen.head_BTD, seen.p_BTV, seen.ids_BT)

    def project(self, states: torch.Tensor) -> torch.Tensor:
        """The target's own output projection."""
        logits: torch.Tensor = self.target.get_output_embeddings()(states.to(self.target.dtype))
        return logits


class BlockwiseLearner(HeadLearner):
    """Head 1 is the target's own."""

    trained: BlockwiseHeads
    first = 2

    def new_heads(self, recipe: Recipe, width: int, logits: int) -> BlockwiseHeads:
        self.measured = recipe.blockwise.heads - 1
        return BlockwiseHeads(recipe.blockwise.heads, width, recipe.blockwise.hidden or width)

    def loss_of(self, output: TargetOutput, labels_BT: torch.Tensor) -> torch.Tensor:
        farthest = labels_BT.shape[1] - (1 if self.target.config.is_encoder_decoder else 2)
        ahead = min(int(torch.randint(1, self.trained.heads, ())), farthest)
        counted_BT = (labels_BT := self.of_rows(labels_BT)[:, max(ahead, 0) :]) != -100
        if ahead < 1 or not counted_BT.any():  # texts of one token
            return self.trained.out_KHD.sum() * 0.0
        q_NV = self._of_head(output.states_BTD[:, :-ahead][counted_BT], ahead)
        return distillation_loss(output.p_BTV[:, ahead:][counted_BT], q_NV, labels_BT[counted_BT], self.kl_weight)

    def logits(self, output: TargetOutput, ahead: int) -> torch.Tensor:
        states_BTD = output.states_BTD[:, :-ahead]
        return self._of_head(states_BTD.flatten(0, 1), ahead).view(*states_BTD.shape[:2], -1)

    def _of_head(self, states_ND: torch.Tensor, ahead: int) -> torch.Tensor:
        return self.trained.logits(states_ND, slice(ahead - 1, ahead), self.project)[0]


class AllHeadsLearner(HeadLearner):
    """Heads that are trained together."""

    def __init__(self, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> None:
        super().__init__(target, recipe, train_set)
        self.measured, self.decay = recipe.heads.number, recipe.heads.decay

    @abstractmethod
    def head_logits(self, output: TargetOutput, ahead: int, chosen_BT: torch.Tensor) -> torch.Tensor:
        """Logits [N, V] of the head `ahead` for the N chosen of the first T - ahead states."""

    def loss_of(self, output: TargetOutput, labels_BT: torch.Tensor) -> torch.Tensor:
        labels_BT = self.of_rows(labels_BT)
        # Texts too short for a head leave it out; the sum of nothing still needs a gradient.
        total = sum((0.0 * weight.sum() for weight in self.trained.parameters()), torch.zeros(()))
        for ahead in range(1, self.measured + 1):
            counted_BT = labels_BT[:, ahead:] != -100
            if not counted_BT.any():
                break
            q_NV = self.head_logits(output, ahead, counted_BT)
            p_NV, labels_N = output.p_BTV[:, ahead:][counted_BT], labels_BT[:, ahead:][counted_BT]
            total = total + self.decay**ahead * distillation_loss(p_NV, q_NV, labels_N, self.kl_weight)
        return total

    def logits(self, output: TargetOutput, ahead: int) -> torch.Tensor:
        states_BTD = output.states_BTD[:, :-ahead]
        everywhere = torch.ones(states_BTD.shape[:2], dtype=torch.bool, device=states_BTD.device)
        return self.head_logits(output, ahead, everywhere).view(*states_BTD.shape[:2], -1)


class MedusaLearner(AllHeadsLearner):
    """Medusa's heads, trained on only the target's states."""

    trained: MedusaHeads

    def new_heads(self, recipe: Recipe, width: int, logits: int) -> MedusaHeads:
        plan = recipe.heads
        return MedusaHeads(plan.number, width, plan.layers, plan.rank, logits)

    def head_logits(self, output: TargetOutput, ahead: int, chosen_BT: torch.Tensor) -> torch.Tensor:
        states_ND = output.states_BTD[:, :-ahead][chosen_BT]
        return self.trained.logits(states_ND, slice(ahead - 1, ahead), self.project)[0]


class HydraLearner(AllHeadsLearner):
    """Hydra's heads, trained on the target's states and the tokens before theirs."""

    trained: HydraHeads

    def new_heads(self, recipe: Recipe, width: int, logits: int) -> HydraHeads:
        plan = recipe.heads
        return HydraHeads(plan.number, width, plan.narrow, plan.rank, logits)

    def head_logits(self, output: TargetOutput, ahead: int, chosen_BT: torch.Tensor) -> torch.Tensor:
        """Head `ahead` reads the tokens from the one after its state to the one before its own."""
        read_BTM = self.trained.narrowed(self.target.get_input_embeddings()(output.ids_BT))
        length = chosen_BT.shape[1]
        read_NJM = torch.stack([read_BTM[:, 1 + place : 1 + place + length][chosen_BT] for place in range(ahead)], 1)
        return self.trained.logits(output.states_BTD[:, :length][chosen_BT], read_NJM, self.project)
