"""Training look-ahead embeddings on a frozen target (Monea et al. 2023, "PaSS").

The embeddings are all that is trained. After a token of a text the target reads all of them, one after another, and
what it predicts at number k is held to its own distribution k tokens after the next one, given the text
between. The paper takes the cross-entropy of the text's tokens, whose gradient is the same in expectation over texts
that the target wrote.

Shapes: B texts, T tokens, P of them that look-ahead embeddings follow, N counted positions, V tokens of the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from specbench.engine.layout import tree
from specbench.engine.placement import Placement
from specbench.engine.saved_heads import LookAheadEmbeddings, extend
from specbench.methods.at_once import positions_after
from specbench.theory.trees import ROOT
from specbench.train.frozen import FrozenTargetLearner
from specbench.train.losses import distillation_loss
from specbench.train.recipe_schema import Recipe


class TargetOutput(NamedTuple):
    """What the target read and computed: its logits after each token, and at each look-ahead position."""

    p_BTV: torch.Tensor
    places_P: torch.Tensor
    q_BPLV: torch.Tensor  # L look-ahead positions after the tokens at these places


class LookAheadLearner(FrozenTargetLearner[TargetOutput]):
    """The embeddings, and the frozen target that reads them."""

    trained: LookAheadEmbeddings
    predictor = "look-ahead position"

    def __init__(self, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> None:
        super().__init__(target, recipe)
        self.plan, self.measured = recipe.look_ahead, recipe.look_ahead.number
        table_VD = target.get_decoder().get_input_embeddings().weight
        embeddings = LookAheadEmbeddings(self.measured, table_VD.shape[1])
        embeddings.start_as(table_VD.cpu())
        self.trained = embeddings.to(target.device)
        self.ids = extend(target, self.trained.weight_LD)
        self.placement = Placement(target)

    def read(self, given: dict[str, torch.Tensor], rows_B: torch.Tensor | None = None) -> TargetOutput:
        """In training, look-ahead positions follow some tokens of each text, the same for all texts; otherwise all."""
        decoding = "decoder_input_ids" if self.target.config.is_encoder_decoder else "input_ids"
        ids_BT = given[decoding]
        length, number = ids_BT.shape[1], self.plan.number
        places_P = torch.arange(length)
        if self.training:
            places_P = torch.randperm(length)[: self.plan.places].sort().values
        ahead = positions_after(self.ids, places_P.tolist(), length)
        ahead_BA = torch.tensor(ahead.tokens, device=ids_BT.device).expand(len(ids_BT), -1)
        read = given | {decoding: torch.cat([ids_BT, ahead_BA], 1)}
        if not self.target.config.is_encoder_decoder:  # what a text is filled up with follows it, and is not visible
            read.pop("attention_mask", None)
        parents = [*range(ROOT, length - 1), *ahead.parents]
        numbers_1C = torch.arange(len(parents), device=ids_BT.device).unsqueeze(0)
        with self.placement.applying(tree(0, tuple(parents), numbers_1C)) as options:
            logits_BCV = self.target(**read, **options, use_cache=False).logits
        p_BTV, q_BAV = logits_BCV.split([length, len(parents) - length], 1)
        return TargetOutput(p_BTV.detach(), places_P, q_BAV.unflatten(1, (len(places_P), number)))

    def loss_of(self, output: TargetOutput, labels_BT: torch.Tensor) -> torch.Tensor:
        labels_BT = self.of_rows(labels_BT)
        total, length = output.q_BPLV.sum() * 0.0, labels_BT.shape[1]  # of texts that are too short
        for ahead in range(1, self.plan.number + 1):
            within = output.places_P + ahead < length
            places_P = (output.places_P + ahead)[within]
            counted_BP = labels_BT[:, places_P]
            if not (counted_BP != -100).any():
                break
            q_BPV = output.q_BPLV[:, within, ahead - 1]
            loss = distillation_loss(output.p_BTV[:, places_P], q_BPV, counted_BP, self.kl_weight)
            total = total + self.plan.decay**ahead * loss
        return total

    def logits(self, output: TargetOutput, ahead: int) -> torch.Tensor:
        return output.q_BPLV[:, : output.p_BTV.shape[1] - ahead, ahead - 1]
