"""One decoder layer of a target's architecture, as EAGLE and EAGLE-3 draft with it: T5's, GPT-2's, or Llama's.

It is written out in tensors, so that one layer serves a cached step, a tree, and training that unrolls several steps.
The caller decides which entries attend to which (`Attend`). Weights are named as in published EAGLE checkpoints.

Shapes: B rows, L new entries, S tokens of the source, D width, H query heads, K key heads, E channels
of a head.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.t5.modeling_t5 import T5Attention

from specbench.engine.beside.declared import Attend, Source
from specbench.errors import UserError


@dataclass(frozen=True)
class LayerShape:
    """The numbers of a decoder layer. `bias`: whether projections have a bias. `scale` is of attention scores."""

    width: int
    hidden: int
    heads: int
    key_heads: int
    head_width: int
    norm: str  # rms | layer
    eps: float
    activation: str
    gated: bool
    bias: bool
    positions: str  # relative | learned | rotary
    scale: float
    crosses: bool  # has cross-attention
    theta: float = 10000.0  # rotary: the base of its angles
    angles: tuple[float, ...] = ()  # rotary: by how much a position turns each pair of channels, if theta does not say
    buckets: int = 32  # relative positions: number of distinct distances
    farthest: int = 128  # relative: from here on all are alike
    head_norms: bool = False  # queries and keys are normalised head by head, as Qwen3's are
    value_width: int | None = None  # channels of a value, if they differ from a key's

    def caches(self, layers: int) -> list[tuple[int, int]]:
        """(heads, channels) of keys, and of values, of so many layers in turn."""
        return [(self.key_heads, width) for width in (self.head_width, self.value_width or self.head_width)] * layers


class Projections(nn.Module):
    """The projections of self-attention, or, without keys of its own, of cross-attention."""

    def __init__(self, shape: LayerShape, reads: int, own_keys: bool = True) -> None:
        super().__init__()
        inner, outer = shape.heads * shape.head_width, shape.key_heads * shape.head_width
        self.q_proj = nn.Linear(reads, inner, bias=shape.bias)
        if own_keys:
            self.k_proj = nn.Linear(reads, outer, bias=shape.bias)
            self.v_proj = nn.Linear(reads, outer, bias=shape.bias)
        self.o_proj = nn.Linear(inner, shape.width, bias=shape.bias and shape.norm == "layer")
        if shape.head_norms:
            self.q_norm, self.k_norm = (Norm(shape, shape.head_width) for _ in range(2))


class FeedForward(nn.Module):
    """The feed-forward sublayer of a decoder layer."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        bias = shape.bias and shape.norm == "layer"
        if shape.gated:
            self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=bias)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=bias)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=bias)
        self.gated, self.activation = shape.gated, ACT2FN[shape.activation]

    def forward(self, states: Tensor) -> Tensor:
        inner: Tensor = self.up_proj(states)
        inner = self.activation(self.gate_proj(states)) * inner if self.gated else self.activation(inner)
        out: Tensor = self.down_proj(inner)
        return out


class Norm(nn.Module):
    """RMSNorm, or LayerNorm, of `width` numbers (unset: the layer's)."""

    def __init__(self, shape: LayerShape, width: int | None = None) -> None:
        super().__init__()
        self.kind, self.eps, width = shape.norm, shape.eps, width or shape.width
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if shape.norm == "layer" else None

    def forward(self, states: Tensor) -> Tensor:
        if self.kind == "rms":
            return F.rms_norm(states, self.weight.shape, self.weight.to(states.dtype), self.eps)
        return F.layer_norm(states, self.weight.shape, self.weight, self.bias, self.eps)


class DraftLayer(nn.Module):
    """The layer without the norm before its self-attention, which reads `reads` numbers an entry."""

    def __init__(self, shape: LayerShape, reads: int) -> None:
        super().__init__()
        self.shape = shape
        self.self_attn = Projections(shape, reads)
        if shape.positions == "relative":
            self.relative_bias = nn.Embedding(shape.buckets, shape.heads)
        if shape.crosses:
            self.cross_layernorm = Norm(shape)
            self.cross_attn = Projections(shape, shape.width, own_keys=False)
        self.post_attention_layernorm = Norm(shape)
        self.mlp = FeedForward(shape)

    def forward(
        self, states_BLD: Tensor, read: Tensor, positions_BL: Tensor, attend: Attend, source: Source | None
    ) -> Tensor:
        """States after the layer. Self-attention reads `read`; the residual stream is `states_BLD`."""
        attention = self.self_attn
        query = self._heads(attention.q_proj(read))
        if self.shape.head_norms:
            query = attention.q_norm(query)
        if self.shape.positions == "rotary":
            query = self._turned(query, positions_BL)
        states_BLD = states_BLD + attention.o_proj(_joined(attend(query, *self.keys_values(read, positions_BL))))
        if self.shape.crosses:
            assert source is not None
            query = self._heads(self.cross_attn.q_proj(self.cross_layernorm(states_BLD)))
            mixed = source.attention(query, source.keys, source.values, source.bias, self.shape.scale)
            states_BLD = states_BLD + self.cross_attn.o_proj(_joined(mixed))
        out: Tensor = states_BLD + self.mlp(self.post_attention_layernorm(states_BLD))
        return out

    def keys_values(self, read: Tensor, positions_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Self-attention's keys and values [B, K, L, E] of entries that it reads."""
        key, value = self._heads(self.self_attn.k_proj(read)), self._heads(self.self_attn.v_proj(read))
        if self.shape.head_norms:
            key = self.self_attn.k_norm(key)
        return self._turned(key, positions_BL) if self.shape.positions == "rotary" else key, value

    def bias_by_distance(self, distances: Tensor) -> Tensor | None:
        """[H, *distances.shape], added to the scores of keys so far before their query; None without such a bias."""
        if self.shape.positions != "relative":
            return None
        buckets = T5Attention._relative_position_bucket(
            -distances, bidirectional=False, num_buckets=self.shape.buckets, max_distance=self.shape.farthest
        )
        bias: Tensor = self.relative_bias(buckets).movedim(-1, 0)
        return bias

    def _heads(self, flat_BLI: Tensor) -> Tensor:
        rows, length, inner = flat_BLI.shape
        return flat_BLI.view(rows, length, inner // self.shape.head_width, self.shape.head_width).transpose(1, 2)

    def _turned(self, heads_BHLE: Tensor, positions_BL: Tensor) -> Tensor:
        """Rotary positions, by halves as Llama pairs its channels."""
        half = self.shape.head_width // 2
        angles = positions_BL[:, None, :, None].float() * self._angles(heads_BHLE.device).repeat(2)
        cosine, sine = (part.to(heads_BHLE.dtype) for part in (angles.cos(), angles.sin()))
        across = torch.cat([-heads_BHLE[..., half:], heads_BHLE[..., :half]], -1)  # as kernels know it
        return heads_BHLE * cosine + across * sine

    def _angles(self, device: torch.device) -> Tensor:
        """[E / 2]: by how much one position turns each pair of channels."""
        if self.shape.angles:
            return torch.tensor(self.shape.angles, device=device)
        half = self.shape.head_width // 2
        exponents = torch.arange(half, device=device, dtype=torch.float32) / half
        return torch.pow(self.shape.theta, -exponents)


def _joined(heads_BHLE: Tensor) -> Tensor:
    rows, heads, length, channels = heads_BHLE.shape
    return heads_BHLE.transpose(1, 2).reshape(rows, length, heads * channels)


def layer_shape(network: Any, key: str) -> LayerShape:
    """The shape of the decoder layers of `network`. Raises UserError for a family that this file does not write out."""
    config = network.config
    if config.model_type == "t5":
        gated = bool(config.is_gated_act)
        return LayerShape(
            config.d_model, config.d_ff, config.num_heads, config.num_heads, config.d_kv, "rms",
            config.layer_norm_epsilon, config.dense_act_fn, gated, False, "relative", 1.0, True,
            buckets=config.relative_attention_num_buckets, farthest=config.relative_attention_max_distance,
        )  # fmt: skip
    if config.model_type == "gpt2":
        head = config.n_embd // config.n_head
        return LayerShape(
            config.n_embd, config.n_inner or 4 * config.n_embd, config.n_head, config.n_head, head, "layer",
            config.layer_norm_epsilon, config.activation_function, False, True, "learned", head**-0.5, False,
        )  # fmt: skip
    if config.model_type in ("llama", "mistral", "qwen2"):
        rope = getattr(config, "rope_parameters", None) or {}
        return llama_shape(config, config.model_type == "qwen2", theta=float(rope.get("rope_theta", 10000.0)))
    raise UserError(
        f"{key}: {type(network).__name__}: EAGLE's layer is written for T5, GPT-2, Llama, Mistral and Qwen2 targets; "
        "use another draft"
    )


def t5_weights(layer: DraftLayer, block: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Each weight of `layer`, except self-attention's, with the same weight of `block`, a T5's decoder layer."""
    _, cross, forward = block.layer
    dense, mlp = forward.DenseReluDense, layer.mlp
    yield layer.cross_attn.q_proj.weight, cross.EncDecAttention.q.weight
    yield layer.cross_attn.o_proj.weight, cross.EncDecAttention.o.weight
    yield layer.cross_layernorm.weight, cross.layer_norm.weight
    yield layer.post_attention_layernorm.weight, forward.layer_norm.weight
    yield mlp.down_proj.weight, dense.wo.weight
    if layer.shape.gated:
        yield mlp.gate_proj.weight, dense.wi_0.weight
    yield mlp.up_proj.weight, dense.wi_1.weight if layer.shape.gated else dense.wi.weight


def final_norm(network: Any) -> tuple[Any, float]:
    """The norm before the head of `network`, and what its output is multiplied by before the head reads it."""
    decoder = network.get_decoder()
    for name in ("final_layer_norm", "ln_f", "norm"):
        if (found := getattr(decoder, name, None)) is not None:
            scaled = getattr(network.config, "scale_decoder_outputs", False)
            return found, network.config.d_model**-0.5 if scaled else 1.0
    raise NotImplementedError(f"{type(network).__name__} has no final norm of a known name")


def llama_shape(config: Any, bias: bool, **rotary: Any) -> LayerShape:
    """The shape of the layers of a Llama's config; `bias`: whether projections have a bias."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return LayerShape(
        config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads, head,
        "rms", config.rms_norm_eps, config.hidden_act, True, bias, "rotary", head**-0.5, False, **rotary,
    )  # fmt: skip


ROTATIONS = ("default", "linear", "llama3")


def rotation(config: Any) -> tuple[float, tuple[float, ...]]:
    """The base of the angles, and if a rule scales them the angles by which a position turns each pair of channels.

    Raises ValueError, with the rule's name, for a rule other than `ROTATIONS`.
    """
    rope = config.rope_parameters
    kind, part = str(rope.get("rope_type")), rope.get("partial_rotary_factor", 1.0)
    if kind not in ROTATIONS or part != 1.0:
        raise ValueError(kind if part == 1.0 else f"partial {part}")
    theta = float(rope["rope_theta"])
    if kind == "default":
        return theta, ()
    angles, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    return theta, tuple(angles.tolist())
