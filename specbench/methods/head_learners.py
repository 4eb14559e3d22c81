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
from typing import NamedTuple, Self

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from specbench.engine.saved_heads import SavedHeads
from specbench.methods.blockwise.draft import BlockwiseHeads
from specbench.methods.hydra.network import HydraHeads
from specbench.methods.medusa.draft import MedusaHeads
from specbench.train.frozen import FrozenTargetLearner
from specbench.train.schema import HeadsPlan, Recipe
from specbench.train.trainers import distillation_loss


class Seen(NamedTuple):
    """The target's input and output. Token t + 1 of `ids_BT` follows state t, and its logits are row t of `p_BTV`."""

    states_BTD: torch.Tensor  # what its head reads
    p_BTV: torch.Tensor  # its logits
    ids_BT: torch.Tensor  # what its decoder read


class HeadLearner(FrozenTargetLearner[Seen]):
    """Heads, and the frozen target that they learn from. Only the heads are its parameters.

    `later` is how many tokens after the next they predict.
    """

    heads: SavedHeads
    later: int
    first: int  # the number that tables give the head of the token after the next

    @property
    def trained(self) -> SavedHeads:
        return self.heads

    @property
    def measured(self) -> int:
        return self.later

    def called(self, ahead: int) -> str:
        return f"head {ahead + self.first - 1}"

    @property
    def width(self) -> int:
        """The width D of the target's last state."""
        width: int = self.target.get_output_embeddings().weight.shape[1]
        return width

    @abstractmethod
    def loss(self, seen: Seen, labels_BT: torch.Tensor) -> torch.Tensor:
        """The loss on one batch. Label t is the token that row t of `seen.p_BTV` is about; -100 does not count."""

    def loss_of(self, seen: Seen, labels_BT: torch.Tensor) -> torch.Tensor:
        if self.target.config.is_encoder_decoder:
            return self.loss(seen, labels_BT)
        # Row t is about token t + 1.
        shorter = seen._replace(states_BTD=seen.states_BTD[:, :-1], p_BTV=seen.p_BTV[:, :-1])
        return self.loss(shorter, labels_BT[:, 1:])

    def read(self, given: dict[str, torch.Tensor]) -> Seen:
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


class BlockwiseLearner(HeadLearner):
    """Head 1 is the target's own."""

    heads: BlockwiseHeads
    first = 2

    def __init__(self, target: PreTrainedModel, heads: int, hidden: int | None, kl_weight: float) -> None:
        super().__init__(target, kl_weight)
        self.heads = BlockwiseHeads(heads, self.width, hidden or self.width).to(target.device)
        self.later = heads - 1

    @classmethod
    def of(cls, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> Self:
        return cls(target, recipe.blockwise.heads, recipe.blockwise.hidden, recipe.distill.kl_weight)

    def loss(self, seen: Seen, labels_BT: torch.Tensor) -> torch.Tensor:
        ahead = min(int(torch.randint(1, self.heads.heads, ())), labels_BT.shape[1] - 1)
        if ahead < 1:  # texts of one token
            return self.heads.out_KHD.sum() * 0.0
        q_BTV = self.logits(seen, ahead)
        return distillation_loss(seen.p_BTV[:, ahead:], q_BTV, labels_BT[:, ahead:], self.kl_weight)

    def logits(self, seen: Seen, ahead: int) -> torch.Tensor:
        states_BTD = seen.states_BTD[:, :-ahead]
        rows_KNV = self.heads.logits(states_BTD.flatten(0, 1), slice(ahead - 1, ahead), self.project)
        return rows_KNV.view(*states_BTD.shape[:2], -1)


class AllHeadsLearner(HeadLearner):
    """Heads that are trained together."""

    first = 1

    def __init__(self, target: PreTrainedModel, plan: HeadsPlan, kl_weight: float) -> None:
        super().__init__(target, kl_weight)
        self.later, self.decay = plan.number, plan.decay

    @classmethod
    def of(cls, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> Self:
        return cls(target, recipe.heads, recipe.distill.kl_weight)

    @property
    def vocabulary(self) -> int:
        """The number of logits of a head."""
        rows: int = self.target.get_output_embeddings().weight.shape[0]
        return rows

    @abstractmethod
    def at(self, seen: Seen, ahead: int, chosen_BT: torch.Tensor) -> torch.Tensor:
        """Logits [N, V] of the head `ahead` for the N chosen of the first T - ahead states."""

    def loss(self, seen: Seen, labels_BT: torch.Tensor) -> torch.Tensor:
        # Texts too short for a head leave it out; the sum of nothing still needs a gradient.
        total = sum((0.0 * weight.sum() for weight in self.heads.parameters()), torch.zeros(()))
        for ahead in range(1, self.later + 1):
            counted_BT = labels_BT[:, ahead:] != -100
            if not counted_BT.any():
                break
            q_NV = self.at(seen, ahead, counted_BT)
            p_NV, labels_N = seen.p_BTV[:, ahead:][counted_BT], labels_BT[:, ahead:][counted_BT]
            total = total + self.decay**ahead * distillation_loss(p_NV, q_NV, labels_N, self.kl_weight)
        return total

    def logits(self, seen: Seen, ahead: int) -> torch.Tensor:
        states_BTD = seen.states_BTD[:, :-ahead]
        everywhere = torch.ones(states_BTD.shape[:2], dtype=torch.bool, device=states_BTD.device)
        logits_NV = self.at(seen, ahead, everywhere)
        return logits_NV.view(*states_BTD.shape[:2], -1)


class MedusaLearner(AllHeadsLearner):
    """Medusa's heads, trained on the target's states alone."""

    heads: MedusaHeads

    def __init__(self, target: PreTrainedModel, plan: HeadsPlan, kl_weight: float) -> None:
        super().__init__(target, plan, kl_weight)
        made = MedusaHeads(plan.number, self.width, plan.layers, plan.rank, self.vocabulary)
        self.heads = made.to(target.device)

    def at(self, seen: Seen, ahead: int, chosen_BT: torch.Tensor) -> torch.Tensor:
        states_ND = seen.states_BTD[:, :-ahead][chosen_BT]
        return self.heads.logits(states_ND, slice(ahead - 1, ahead), self.project)[0]


class HydraLearner(AllHeadsLearner):
    """Hydra's heads, trained on the target's states and the tokens before theirs."""

    heads: HydraHeads

    def __init__(self, target: PreTrainedModel, plan: HeadsPlan, kl_weight: float) -> None:
        super().__init__(target, plan, kl_weight)
        made = HydraHeads(plan.number, self.width, plan.narrow, plan.rank, self.vocabulary)
        self.heads = made.to(target.device)

    def at(self, seen: Seen, ahead: int, chosen_BT: torch.Tensor) -> torch.Tensor:
        """Head `ahead` reads the tokens from the one after its state to the one before its own."""
        read_BTM = self.heads.narrowed(self.target.get_input_embeddings()(seen.ids_BT))
        length = chosen_BT.shape[1]
        read_NJM = torch.stack([read_BTM[:, 1 + place : 1 + place + length][chosen_BT] for place in range(ahead)], 1)
        return self.heads.logits(seen.states_BTD[:, :length][chosen_BT], read_NJM, self.project)
