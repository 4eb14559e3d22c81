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
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel

from specbench.engine.beside.declared import Source
from specbench.engine.cache_names import cache_of
from specbench.engine.eager.network_parts import layer_list
from specbench.engine.layout import mask_bias
from specbench.methods.decoder_layer import DraftLayer, final_norm, layer_shape, t5_weights
from specbench.methods.eagle.network import Eagle, EagleShape
from specbench.methods.eagle.unrolled import unrolled
from specbench.train.frozen import FrozenTargetLearner, Seen, earlier_weights
from specbench.train.logits import FromStates, Logits, computed
from specbench.train.losses import distillation_loss
from specbench.train.recipe_places import resolve
from specbench.train.recipe_schema import Recipe
from specbench.train.target_texts import special_ids

SMALL = 0.05  # of the embedding's part, beside the feature's


class TargetOutput(NamedTuple):
    """What the target read and computed; its logits at t are about the token after t."""

    features_BTF: torch.Tensor
    p_BTV: Logits
    ids_BT: torch.Tensor  # of its decoder
    source: Source | None


class EagleLearner(FrozenTargetLearner[TargetOutput]):
    """The layer, and the frozen target that it learns from. Only the layer's weights are its parameters."""

    trained: Eagle
    measured = 4
    predictor = "drafted token"
    learns_features: ClassVar[bool] = True  # towards the target's, if the layer predicts them

    def __init__(self, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> None:
        super().__init__(target, recipe)
        self.plan = recipe.eagle
        self.trained = self.new(target, recipe, train_set).to(target.device).bind(target)

    def new(self, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> Eagle:
        """The layer to train, with new weights or the target's."""
        plan = recipe.eagle
        kept = None if plan.vocabulary is None else _draft_vocabulary(recipe, target, train_set, plan.vocabulary)
        layer = layer_shape(target, "distill.target")
        scaled = layer.positions == "relative" and getattr(target.config, "scale_decoder_outputs", False)
        shape = EagleShape(
            layer, tuple(plan.taps), layer.width**0.5 if scaled else 1.0,
            None if kept is None else len(kept), kept is not None and plan.own_head,
        )  # fmt: skip
        eagle = self.made(shape, target, recipe)
        borrow_layer(eagle, target, kept)
        return eagle

    def made(self, shape: EagleShape, target: PreTrainedModel, recipe: Recipe) -> Eagle:
        """The module of this shape, with new weights."""
        return Eagle(shape)

    def loss_of(self, output: TargetOutput, labels_BT: torch.Tensor) -> torch.Tensor:
        labels_BT = self.of_rows(labels_BT)
        if labels_BT.shape[1] < 2:  # texts of one token
            return self.trained.fc.weight.sum() * 0.0
        total = torch.zeros((), device=labels_BT.device)
        weights = 0.0
        for step, states_BTD in enumerate(self.steps(output, self.plan.steps, self.plan.noise)):
            weight = self.plan.decay**step
            # Entry j is about what the target computes at j + 1.
            counted_BT = labels_BT[:, step + 1 :]
            if not (counted_BT != -100).any():
                break
            states_BTD = states_BTD[:, step:]
            loss = self._token_loss(output.p_BTV[:, step + 1 :], states_BTD, counted_BT)
            if self.learns_features and not self.trained.shape.taps:
                wanted_BTD = self.trained.fuse(output.features_BTF[:, step + 1 :])
                places = counted_BT != -100
                of_features = F.smooth_l1_loss(states_BTD[places].float(), wanted_BTD[places].float())
                loss = self.plan.token_weight * loss + self.plan.feature_weight * of_features
            total, weights = total + weight * loss, weights + weight
        return total / max(weights, 1e-9)

    def _token_loss(self, p_BTV: Logits, states_BTD: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
        """Towards p, renormalised over the draft vocabulary. Logits of tokens that do not count are not computed."""
        counted_BT = labels_BT != -100
        p_NV, labels_N = computed(p_BTV[counted_BT]), labels_BT[counted_BT]
        if self.trained.shape.vocabulary is not None:
            p_NV = p_NV[..., self.trained.draft_vocabulary]
        q_NV = self.trained.draft_logits(states_BTD[counted_BT].to(self.target.dtype))
        return distillation_loss(p_NV, q_NV, labels_N, self.kl_weight)

    def steps(self, output: TargetOutput, steps: int, noise: float = 0.0) -> Iterator[torch.Tensor]:
        """Predicted features [B, T - 1, D] of each step."""
        features_BTF = output.features_BTF[:, :-1]
        if noise:
            scale = self.trained.shape.feature_scale
            features_BTF = features_BTF + (torch.rand_like(features_BTF) * 2 - 1) * noise / scale
        return unrolled(self.trained, features_BTF, self.trained.embed(output.ids_BT[:, 1:], 1), output.source, steps)

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(self.trained.shape.taps)

    def output_of(self, seen: Seen, given: dict[str, torch.Tensor]) -> TargetOutput:
        features = torch.cat(seen.taps, -1) if seen.taps else seen.head_BTD
        source = None
        if self.trained.shape.layer.crosses:
            last = cache_of(seen.output).cross_attention_cache.layers[-1]
            visible = given["attention_mask"][:, None, None, :] != 0
            source = Source(last.keys, last.values, mask_bias(visible, last.keys.dtype))
        return TargetOutput(features, seen.p_BTV, seen.ids_BT, source)

    def logits(self, output: TargetOutput, ahead: int) -> FromStates:
        *_, states_BTD = self.steps(output, ahead)
        return FromStates(states_BTD[:, ahead - 1 :].to(self.target.dtype), self.trained.logits)


def _draft_vocabulary(recipe: Recipe, target: PreTrainedModel, train_set: Dataset, size: int) -> list[int]:
    """`size` tokens of the target, in the order of ids.

    They are those that the texts to train on have most often, with the ends of a text, or the vocabulary of the heads
    to start from, since their rows belong to it.
    """
    if recipe.distill.start_from:
        earlier = earlier_weights(Path(resolve(recipe.distill.start_from)))
        if "draft_vocabulary" in earlier:
            return [int(token) for token in earlier["draft_vocabulary"]]
    counts = Counter(chain.from_iterable(train_set["labels" if recipe.task == "seq2seq" else "input_ids"]))
    counts.update(dict.fromkeys(special_ids(target)[1], len(train_set) + max(counts.values())))
    return sorted(token for token, _ in counts.most_common(size))


@torch.no_grad()
def borrow_layer(eagle: Eagle, target: Any, kept: list[int] | None) -> None:
    """Fill `eagle` from the target's last decoder layer; `kept` are the tokens of the draft vocabulary.

    The weights of the linear layer before it that read the embedding begin near zero, so that the layer at first reads
    only the feature, which is the output of the target's layers.
    """
    width = eagle.shape.layer.width
    borrow_weights(eagle.layer, target)
    nn.init.normal_(eagle.fc.weight, std=SMALL * width**-0.5)
    eagle.fc.weight[:, -width:] += torch.eye(width)
    if eagle.fc.bias is not None:
        nn.init.zeros_(eagle.fc.bias)
    if not eagle.shape.taps:
        if (
            eagle.shape.layer.positions == "rotary"
        ):  # the target's layer adds to states that are far larger than features
            for projection in (eagle.layer.self_attn.o_proj, eagle.layer.mlp.down_proj):
                projection.weight.mul_(SMALL)
        return
    final, scale = final_norm(target)
    eagle.norm.load_state_dict({name: weight * scale for name, weight in final.state_dict().items()})
    if kept is not None:
        eagle.draft_vocabulary.copy_(torch.tensor(kept))
        if eagle.shape.own_head:
            eagle.lm_head.weight.copy_(target.get_output_embeddings().weight[kept])


@torch.no_grad()
def borrow_weights(layer: DraftLayer, target: Any) -> None:
    """Fill `layer` from the target's last decoder layer, with the weights of the norm before it.

    If its self-attention reads more than the state, the weights that read the rest begin near zero.
    """
    width = layer.shape.width
    layers: list[Any] = list(layer_list(target))
    last = layers[-1]
    biases: dict[str, torch.Tensor] = {}
    if layer.shape.positions == "relative":
        own = last.layer[0]
        named, before = {name: getattr(own.SelfAttention, name).weight for name in "qkvo"}, own.layer_norm
        layer.relative_bias.weight.copy_(layers[0].layer[0].SelfAttention.relative_attention_bias.weight)
        for ours, theirs in t5_weights(layer, last):
            ours.copy_(theirs)
    elif layer.shape.positions == "learned":
        attention, before = last.attn, last.ln_1
        named = dict(zip("qkv", attention.c_attn.weight.T.split(width), strict=True)) | {"o": attention.c_proj.weight.T}
        biases = dict(zip("qkv", attention.c_attn.bias.split(width), strict=True)) | {"o": attention.c_proj.bias}
        layer.post_attention_layernorm.load_state_dict(last.ln_2.state_dict())
        for mine, its in ((layer.mlp.up_proj, last.mlp.c_fc), (layer.mlp.down_proj, last.mlp.c_proj)):
            mine.weight.copy_(its.weight.T)
            mine.bias.copy_(its.bias)
    else:
        before = last.input_layernorm
        projections = {name: getattr(last.self_attn, f"{name}_proj") for name in "qkvo"}
        named = {name: one.weight for name, one in projections.items()}
        biases = {name: one.bias for name, one in projections.items() if one.bias is not None}
        layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    for name in "qkvo":
        projection = getattr(layer.self_attn, f"{name}_proj")
        if name == "o":
            projection.weight.copy_(named[name])
        else:
            projection.weight.mul_(SMALL)[:, -width:].copy_(named[name] * before.weight)
        if name in biases and projection.bias is not None:
            projection.bias.copy_(biases[name])
