"""Training EAGLE's layer on a frozen target.

EAGLE (2401.15077): the predicted feature is trained towards the target's (smooth L1) and its token to the target's
distribution, with noise on the features, as drafted features are not exact. EAGLE-3 (2503.01840): no feature
is held to anything; the layer runs on from its own predictions for several steps, and each step's tokens are held to
the target's distribution, later steps less.

Shapes: B texts, T tokens, F numbers of a feature, D the target's width, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import PreTrainedModel

from specbench.engine.eager.parts import Taps
from specbench.methods.borrowed_layer import borrow_layer
from specbench.methods.decoder_layer import Source, layer_shape
from specbench.methods.eagle.network import Eagle, EagleShape, unrolled
from specbench.train.frozen import FrozenTargetLearner, earlier_weights
from specbench.train.schema import EaglePlan, Recipe, resolve
from specbench.train.sets import special_ids
from specbench.train.trainers import distillation_loss

MEASURED = 4  # tokens of a proposal whose alpha the card has


class Seen(NamedTuple):
    """What the target read and computed; its logits at t are about the token after t."""

    features_BTF: torch.Tensor
    p_BTV: torch.Tensor
    ids_BT: torch.Tensor  # of its decoder
    source: Source | None


class EagleLearner(FrozenTargetLearner[Seen]):
    """The layer, and the frozen target that it learns from. Only the layer's weights are its parameters."""

    @classmethod
    def of(cls, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> Self:
        size = recipe.eagle.vocabulary
        kept = None if size is None else _draft_vocabulary(recipe, target, train_set, size)
        return cls(target, recipe.eagle, recipe.distill.kl_weight, kept)

    def __init__(self, target: PreTrainedModel, plan: EaglePlan, kl_weight: float, kept: list[int] | None) -> None:
        """`kept`: the tokens of the draft vocabulary, None for all."""
        super().__init__(target, kl_weight)
        self.plan = plan
        layer = layer_shape(target, "distill.target")
        scaled = layer.positions == "relative" and getattr(target.config, "scale_decoder_outputs", False)
        shape = EagleShape(
            layer, tuple(plan.taps), layer.width**0.5 if scaled else 1.0,
            None if kept is None else len(kept), kept is not None and plan.own_head,
        )  # fmt: skip
        self.eagle = Eagle(shape)
        borrow_layer(self.eagle, target, kept)
        self.eagle = self.eagle.to(target.device).bind(target)

    @property
    def trained(self) -> Eagle:
        return self.eagle

    @property
    def measured(self) -> int:
        return MEASURED

    def called(self, ahead: int) -> str:
        return f"drafted token {ahead}"

    def loss_of(self, seen: Seen, labels_BT: torch.Tensor) -> torch.Tensor:
        labels_BT = self.of_rows(labels_BT)
        if labels_BT.shape[1] < 2:  # texts of one token
            return self.eagle.fc.weight.sum() * 0.0
        total = torch.zeros((), device=labels_BT.device)
        weights = 0.0
        for step, states_BTD in enumerate(self.steps(seen, self.plan.steps, self.plan.noise)):
            weight = self.plan.decay**step
            # Entry j is about what the target computes at j + 1.
            counted_BT = labels_BT[:, step + 1 :]
            if not (counted_BT != -100).any():
                break
            states_BTD = states_BTD[:, step:]
            loss = self._token_loss(seen.p_BTV[:, step + 1 :], states_BTD, counted_BT)
            if not self.eagle.shape.taps:
                wanted_BTD = self.eagle.fuse(seen.features_BTF[:, step + 1 :])
                places = counted_BT != -100
                apart = F.smooth_l1_loss(states_BTD[places].float(), wanted_BTD[places].float())
                loss = self.plan.token_weight * loss + self.plan.feature_weight * apart
            total, weights = total + weight * loss, weights + weight
        return total / max(weights, 1e-9)

    def _token_loss(self, p_BTV: torch.Tensor, states_BTD: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
        """Towards p, renormalised over the draft vocabulary."""
        if self.eagle.shape.vocabulary is not None:
            p_BTV = p_BTV[..., self.eagle.draft_vocabulary]
        q_BTV = self.eagle.draft_logits(states_BTD.to(self.target.dtype))
        return distillation_loss(p_BTV, q_BTV, labels_BT, self.kl_weight)

    def steps(self, seen: Seen, steps: int, noise: float = 0.0) -> Iterator[torch.Tensor]:
        """Predicted features [B, T - 1, D] of each step."""
        features_BTF = seen.features_BTF[:, :-1]
        if noise:
            features_BTF = (
                features_BTF + (torch.rand_like(features_BTF) * 2 - 1) * noise / self.eagle.shape.feature_scale
            )
        return unrolled(self.eagle, features_BTF, self.eagle.embed(seen.ids_BT[:, 1:], 1), seen.source, steps)

    @torch.no_grad()
    def read(self, given: dict[str, torch.Tensor]) -> Seen:
        states: list[torch.Tensor] = []
        head = self.target.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, read: states.append(read[0]))
        taps = Taps(self.target, self.eagle.shape.taps)
        try:
            output = self.target(**given, use_cache=self.target.config.is_encoder_decoder)
        finally:
            hook.remove()
            taps.close()
        features = torch.cat(taps.taken(), -1) if taps.depths else states[-1]
        source = None
        if self.eagle.shape.layer.crosses:
            last = output.past_key_values.cross_attention_cache.layers[-1]
            hidden = given["attention_mask"][:, None, None, :] == 0
            bias = torch.zeros_like(hidden, dtype=last.keys.dtype).masked_fill(hidden, torch.finfo(last.keys.dtype).min)
            source = Source(last.keys, last.values, bias)
        return Seen(features, output.logits, given.get("decoder_input_ids", given["input_ids"]), source)

    def logits(self, seen: Seen, ahead: int) -> torch.Tensor:
        *_, states_BTD = self.steps(seen, ahead)
        return self.eagle.logits(states_BTD[:, ahead - 1 :].to(self.target.dtype))


def _draft_vocabulary(recipe: Recipe, target: PreTrainedModel, train_set: Dataset, size: int) -> list[int]:
    """The most frequent tokens, or the vocabulary of the heads to start from, since their rows belong to it."""
    if recipe.distill.start_from:
        earlier = earlier_weights(Path(resolve(recipe.distill.start_from)))
        if "draft_vocabulary" in earlier:
            return [int(token) for token in earlier["draft_vocabulary"]]
    return _most_frequent(recipe, target, train_set, size)


def _most_frequent(recipe: Recipe, target: PreTrainedModel, train_set: Dataset, size: int) -> list[int]:
    """The `size` tokens that the texts to train on have most often, and the ends of a text, in the order of ids."""
    column = "labels" if recipe.task == "seq2seq" else "input_ids"
    counts = Counter(chain.from_iterable(train_set[column]))
    most = len(train_set) + max(counts.values())
    counts.update(dict.fromkeys(special_ids(target)[1], most))
    return sorted(token for token, _ in counts.most_common(size))
