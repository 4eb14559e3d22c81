"""Training heads on a frozen target: what every kind of them shares.

Heads learn towards the target's own distribution at the token that they predict. For T5 on texts that the target wrote
(`DistillPlan`), for decoder-only targets on the data. Independent of files or the Trainer.

Shapes: B texts, T tokens, D the target's width, V tokens of the vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch

from specbench.engine.saved_heads import SavedHeads
from specbench.train.frozen import FrozenTargetLearner


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
