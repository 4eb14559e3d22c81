"""Training blockwise heads: each batch trains one head, drawn at random (Stern, Shazeer, Uszkoreit 2018).

The base parameters are frozen.

Shapes: B texts, T tokens, D the target's width, V tokens of the vocabulary.
"""

from __future__ import annotations

from typing import Self

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from specbench.methods.blockwise.network import BlockwiseHeads
from specbench.train.distill import distillation_loss
from specbench.train.heads import HeadLearner, Seen
from specbench.train.schema import Recipe


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
        return self.project(self.heads(states_BTD.flatten(0, 1), slice(ahead - 1, ahead)).view_as(states_BTD))
