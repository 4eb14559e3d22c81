"""Training SpecDec's decoder on the encoder of a frozen target.

After each token of a text all K queries predict at once, and each is held to the target's distribution at its own
token. The paper trains on the tokens of outputs of the target (sequence-level distillation) with random masks; this
is the same with soft labels and a proposal begun after every token.

Shapes: B texts, T tokens, K queries, D the target's width, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from specbench.engine.beside.declared import Source
from specbench.engine.cache_names import cache_of
from specbench.engine.eager.network_parts import layer_list
from specbench.engine.layout import mask_bias
from specbench.errors import UserError
from specbench.methods.decoder_layer import final_norm, layer_shape
from specbench.methods.specdec.network import ParallelDecoder, require_t5, t5_pairs
from specbench.train.frozen import FrozenTargetLearner, Seen
from specbench.train.logits import Logits
from specbench.train.losses import distillation_loss
from specbench.train.recipe_schema import Recipe


class TargetOutput(NamedTuple):
    """What the target read and computed; its logits at t are about the token after t."""

    p_BTV: Logits
    ids_BT: torch.Tensor  # of its decoder
    sources: list[Source]


class SpecDecLearner(FrozenTargetLearner[TargetOutput]):
    """The decoder, and the frozen target that it learns from. Only the decoder's weights are its parameters."""

    trained: ParallelDecoder
    predictor = "drafted token"
    first, soonest = 2, 0

    def __init__(self, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> None:
        super().__init__(target, recipe)
        self.plan = plan = recipe.specdec
        require_t5(target.config, "distill.target")
        if (most := target.config.num_decoder_layers) <= max(plan.layers):
            raise UserError(f"specdec.layers is {list(plan.layers)}: the target has {most} decoder layers, from 0")
        decoder = ParallelDecoder(plan.queries, list(plan.layers), asdict(layer_shape(target, "distill.target")))
        borrow_decoder(decoder, target)
        self.trained, self.measured = decoder.to(target.device).bind(target), plan.queries

    def loss_of(self, output: TargetOutput, labels_BT: torch.Tensor) -> torch.Tensor:
        states_BTKD = self.trained.states_after_each(output.ids_BT, output.sources)
        total = torch.zeros((), device=labels_BT.device)
        weights = 0.0
        for ahead in range(self.trained.queries):
            counted_BT = labels_BT[:, ahead:] != -100
            counted_BT &= torch.rand(counted_BT.shape, device=counted_BT.device) < self.plan.share
            if not counted_BT.any():
                continue
            weight = self.plan.decay**ahead
            states_ND = states_BTKD[:, : counted_BT.shape[1], ahead][counted_BT]
            p_NV, labels_N = output.p_BTV[:, ahead:][counted_BT], labels_BT[:, ahead:][counted_BT]
            q_NV = self.trained.project(states_ND.to(self.target.dtype))
            total = total + weight * distillation_loss(p_NV, q_NV, labels_N, self.kl_weight)
            weights += weight
        return total / max(weights, 1e-9) + 0.0 * states_BTKD.sum()  # also if nothing counts there is a gradient

    def output_of(self, seen: Seen, given: dict[str, torch.Tensor]) -> TargetOutput:
        visible = given["attention_mask"][:, None, None, :] != 0
        layers = cache_of(seen.output).cross_attention_cache.layers
        cached = [layers[number] for number in self.trained.layers]
        sources = [Source(one.keys, one.values, mask_bias(visible, one.keys.dtype)) for one in cached]
        return TargetOutput(seen.p_BTV, seen.ids_BT, sources)

    def logits(self, output: TargetOutput, ahead: int) -> torch.Tensor:
        states_BTKD = self.trained.states_after_each(output.ids_BT, output.sources)
        length = states_BTKD.shape[1] - ahead
        return self.trained.project(states_BTKD[:, :length, ahead].to(self.target.dtype))


@torch.no_grad()
def borrow_decoder(decoder: ParallelDecoder, target: Any) -> None:
    """Fill `decoder` from a T5 target: its layers, its final norm, and queries of the size of embeddings."""
    blocks: list[Any] = list(layer_list(target))
    layers: Any = decoder.blocks
    for layer in layers:
        layer.relative_bias.weight.copy_(blocks[0].layer[0].SelfAttention.relative_attention_bias.weight)
    for ours, theirs in t5_pairs(decoder, [blocks[number] for number in decoder.layers]):
        ours.copy_(theirs)
    final, scale = final_norm(target)
    decoder.norm.weight.copy_(final.weight * scale)
    decoder.query_KD.mul_(target.get_input_embeddings().weight.float().pow(2).mean().sqrt())
