"""EAGLE's layer and SpecDec's decoder at the start of a training: the target's own decoder layers.

EAGLE's is the last, fed by the target's features. What the linear layer before it does with the embedding begins near
zero, so that the layer first works on the feature alone, which is what the target's layers end with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from specbench.engine.eager.parts import layer_list
from specbench.methods.decoder_layer import DraftLayer
from specbench.methods.eagle.network import Eagle
from specbench.methods.specdec.network import ParallelDecoder

SMALL = 0.05  # of the embedding's part, beside the feature's


@torch.no_grad()
def borrow_layer(eagle: Eagle, target: Any, kept: list[int] | None) -> None:
    """Fill `eagle` from `target`; `kept` are the tokens of the draft vocabulary."""
    layer, width = eagle.layer, eagle.shape.layer.width
    layers: list[Any] = list(layer_list(target))
    first, last = layers[0], layers[-1]
    if eagle.shape.layer.positions == "relative":
        own = last.layer[0]
        named, before = {name: getattr(own.SelfAttention, name).weight for name in "qkvo"}, own.layer_norm
        borrow_t5_rest(layer, last, first)
        biases = {}
    elif eagle.shape.layer.positions == "learned":
        before = last.ln_1
        weights, bias = last.attn.c_attn.weight.T.split(width), last.attn.c_attn.bias.split(width)
        named = dict(zip("qkv", weights, strict=True)) | {"o": last.attn.c_proj.weight.T}
        biases = dict(zip("qkv", bias, strict=True)) | {"o": last.attn.c_proj.bias}
        layer.post_attention_layernorm.load_state_dict(last.ln_2.state_dict())
        for ours, theirs in ((layer.mlp.up_proj, last.mlp.c_fc), (layer.mlp.down_proj, last.mlp.c_proj)):
            ours.weight.copy_(theirs.weight.T)
            ours.bias.copy_(theirs.bias)
    else:
        before = last.input_layernorm
        attention = last.self_attn
        named = {name: getattr(attention, f"{name}_proj").weight for name in "qkvo"}
        biases = {
            name: getattr(attention, f"{name}_proj").bias
            for name in "qkvo"
            if getattr(attention, f"{name}_proj").bias is not None
        }
        layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    for name in "qkv":
        ours = getattr(layer.self_attn, f"{name}_proj")
        ours.weight.mul_(SMALL)[:, -width:].copy_(named[name] * before.weight)
        if name in biases:
            ours.bias.copy_(biases[name])
    layer.self_attn.o_proj.weight.copy_(named["o"])
    if "o" in biases and layer.self_attn.o_proj.bias is not None:
        layer.self_attn.o_proj.bias.copy_(biases["o"])
    _feed(eagle, target, kept)


@torch.no_grad()
def borrow_t5_rest(layer: DraftLayer, block: Any, first: Any) -> None:
    """Fill `layer`, except its self-attention's projections, from a T5's decoder layer.

    `first`, the target's first layer, has the position biases.
    """
    _, cross, forward = (part for part in block.layer)
    layer.relative_bias.weight.copy_(first.layer[0].SelfAttention.relative_attention_bias.weight)
    layer.cross_attn.q_proj.weight.copy_(cross.EncDecAttention.q.weight)
    layer.cross_attn.o_proj.weight.copy_(cross.EncDecAttention.o.weight)
    layer.cross_layernorm.weight.copy_(cross.layer_norm.weight)
    layer.post_attention_layernorm.weight.copy_(forward.layer_norm.weight)
    dense = forward.DenseReluDense
    layer.mlp.down_proj.weight.copy_(dense.wo.weight)
    if layer.shape.gated:
        layer.mlp.gate_proj.weight.copy_(dense.wi_0.weight)
        layer.mlp.up_proj.weight.copy_(dense.wi_1.weight)
    else:
        layer.mlp.up_proj.weight.copy_(dense.wi.weight)


@torch.no_grad()
def borrow_parallel_decoder(decoder: ParallelDecoder, target: Any) -> None:
    """Fill `decoder` from a T5 target: its layers, its final norm, and queries of the size of embeddings."""
    blocks: list[Any] = list(layer_list(target))
    layers: list[tuple[int, Any, Any]] = list(zip(decoder.layers, decoder.norms, decoder.blocks, strict=True))
    for number, norm, layer in layers:
        own = blocks[number].layer[0]
        for name in "qkvo":
            getattr(layer.self_attn, f"{name}_proj").weight.copy_(getattr(own.SelfAttention, name).weight)
        norm.weight.copy_(own.layer_norm.weight)
        borrow_t5_rest(layer, blocks[number], blocks[0])
    scale = decoder.shape.width**-0.5 if getattr(target.config, "scale_decoder_outputs", False) else 1.0
    final: Any = _final_norm(target)
    decoder.norm.weight.copy_(final.weight * scale)
    embeddings = target.get_input_embeddings().weight
    decoder.query_KD.mul_(embeddings.float().pow(2).mean().sqrt())


def _feed(eagle: Eagle, target: Any, kept: list[int] | None) -> None:
    """Fill the projection before the layer, and for a layer with taps the norm and the head after it."""
    width = eagle.shape.layer.width
    nn.init.normal_(eagle.fc.weight, std=SMALL * width**-0.5)
    eagle.fc.weight[:, -width:] += torch.eye(width)
    if eagle.fc.bias is not None:
        nn.init.zeros_(eagle.fc.bias)
    if not eagle.shape.taps:
        return
    head, final = target.get_output_embeddings(), _final_norm(target)
    scale = width**-0.5 if getattr(target.config, "scale_decoder_outputs", False) else 1.0
    eagle.norm.load_state_dict({name: weight * scale for name, weight in final.state_dict().items()})
    if kept is not None:
        eagle.draft_vocabulary.copy_(torch.tensor(kept))
        if eagle.shape.own_head:
            eagle.lm_head.weight.copy_(head.weight[kept])


def _final_norm(target: Any) -> nn.Module:
    decoder = target.get_decoder()
    for name in ("final_layer_norm", "ln_f", "norm"):
        if (found := getattr(decoder, name, None)) is not None:
            return found  # type: ignore[no-any-return]
    raise NotImplementedError(f"{type(target).__name__} has no final norm of a known name")
