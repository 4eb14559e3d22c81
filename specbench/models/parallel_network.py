"""SpecDec's decoder as a T5 module, so that an engine that captures steps can run it.

Its vocabulary is the target's and, after that, the queries. Encoder, head and the projections of the source are the
target's own modules or weights.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import T5ForConditionalGeneration

from specbench.models.exits import layer_list, own_head
from specbench.models.parallel_decoder import ParallelDecoder


class OwnBias(nn.Module):
    """A T5's self-attention sublayer whose position biases are its own, where a T5's are the first layer's."""

    def __init__(self, sublayer: Any) -> None:
        super().__init__()
        self.sublayer = sublayer

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, position_bias: Any = None, **more: Any) -> Any:
        return self.sublayer(hidden_states, attention_mask=attention_mask, position_bias=None, **more)


@torch.no_grad()
def as_t5(decoder: ParallelDecoder, target: Any) -> Any:
    """Return a T5 with the weights of `decoder`, which is bound to `target`."""
    config = copy.deepcopy(target.config)
    vocabulary = target.get_input_embeddings().weight
    config.num_decoder_layers, config.num_layers = len(decoder.layers), 1
    config.vocab_size = len(vocabulary) + decoder.queries
    made = T5ForConditionalGeneration(config)
    made.config.tie_word_embeddings = made.config.scale_decoder_outputs = False  # after construction, which ties them
    theirs: list[Any] = list(layer_list(target))
    ours: list[tuple[Any, Any, Any, int]] = list(
        zip(layer_list(made), decoder.norms, decoder.blocks, decoder.layers, strict=True)
    )
    for block, norm, layer, number in ours:
        own, cross, forward = (part for part in block.layer)
        for name in "qkvo":
            getattr(own.SelfAttention, name).weight.copy_(getattr(layer.self_attn, f"{name}_proj").weight)
        own.layer_norm.weight.copy_(norm.weight)
        biases = nn.Embedding(*layer.relative_bias.weight.shape)
        biases.weight.copy_(layer.relative_bias.weight)
        own.SelfAttention.relative_attention_bias = biases
        own.SelfAttention.has_relative_attention_bias = True
        block.layer[0] = OwnBias(own)
        attention, of_target = cross.EncDecAttention, theirs[number].layer[1].EncDecAttention
        for name in "qo":
            getattr(attention, name).weight.copy_(getattr(layer.cross_attn, f"{name}_proj").weight)
        for name in "kv":
            getattr(attention, name).weight.copy_(getattr(of_target, name).weight)
        cross.layer_norm.weight.copy_(layer.cross_layernorm.weight)
        forward.layer_norm.weight.copy_(layer.post_attention_layernorm.weight)
        dense = forward.DenseReluDense
        dense.wo.weight.copy_(layer.mlp.down_proj.weight)
        if decoder.shape.gated:
            dense.wi_0.weight.copy_(layer.mlp.gate_proj.weight)
            dense.wi_1.weight.copy_(layer.mlp.up_proj.weight)
        else:
            dense.wi.weight.copy_(layer.mlp.up_proj.weight)
    made.decoder.final_layer_norm.weight.copy_(decoder.norm.weight)
    made = made.to(vocabulary.device, vocabulary.dtype)
    embeddings = nn.Embedding.from_pretrained(torch.cat([vocabulary, decoder.query_KD.to(vocabulary)]))
    made.shared = embeddings
    made.decoder.set_input_embeddings(embeddings)
    made.encoder = target.encoder
    made.lm_head = own_head(target)
    return made.eval().requires_grad_(False)
