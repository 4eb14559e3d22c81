"""Training Medusa's and Hydra's heads: all heads on each batch, the loss of head k with weight decay^k.

.8^k in Cai et al. 2024, "Medusa-1": the target is frozen. Both learn towards the target's distribution (forward KL), as
Hydra does with its teacher loss; Medusa's own recipe takes the cross-entropy of the tokens, whose gradient is the same
in expectation over the target's own completions.

Shapes: B texts, T tokens, N counted positions, D the target's width, J tokens that a head reads, M numbers of each, V
tokens of the vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from specbench.methods.medusa.network import MedusaHeads
from specbench.train.distill import distillation_loss
from specbench.train.heads import HeadLearner, Seen
from specbench.train.schema import HeadsPlan, Recipe


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
