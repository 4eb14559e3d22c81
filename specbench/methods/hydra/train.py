"""Training Hydra's heads."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from specbench.methods.hydra.network import HydraHeads
from specbench.methods.medusa.train import AllHeadsLearner
from specbench.train.heads import Seen
from specbench.train.schema import HeadsPlan


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
