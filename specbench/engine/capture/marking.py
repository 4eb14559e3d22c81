"""A `transformers` network over given buffers, with its attention and its experts marked.

Where a network meets its cache lie `transformers`' own extension points: cache layers, here over given buffers, and an
attention function. Both leave one named operation in a captured graph (`specbench::write`, `specbench::attend`), so
that nothing there has to be guessed from a pattern.

Shapes: B rows, L new tokens per row, C slots of the cache, H heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache, PretrainedConfig
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from specbench.engine.capture import expert_layers
from specbench.engine.operations import kernels
from specbench.engine.placement import NAME


@torch.library.custom_op("specbench::write", mutates_args=("buffer",))
def write(buffer: Tensor, at: Tensor, states: Tensor) -> None:
    """Write `states` into the slots `at` of `buffer`: an operation that the rewrites find in a captured graph."""
    kernels.write(buffer, at, states)


@torch.library.custom_op("specbench::attend", mutates_args=())
def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, sinks: Tensor | None = None
) -> Tensor:
    """Attention with an additive bias: an operation that the rewrites find in a captured graph."""
    return kernels.attend(query, key, value, bias, scale, sinks).clone()


@attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, sinks: Tensor | None = None
) -> Tensor:
    return query.new_empty(*query.shape[:-1], value.shape[-1])


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function as `transformers` calls it."""
    if kwargs.get("softcap") is not None:
        raise NotImplementedError("attention with capped scores")
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    if attention_mask is None and causal and key.shape[-2] != 1:
        raise NotImplementedError("causal attention without a mask")
    # Mask and position bias become one term, the same for each layer that shares them; on CPU in fp32, as scores are.
    bias, dtype = position_bias, torch.float32 if key.device.type == "cpu" else key.dtype
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        lowest = torch.finfo(dtype).min
        bias = torch.zeros((), dtype=dtype, device=key.device) if bias is None else bias.to(dtype)
        bias = torch.where(attention_mask, bias, lowest)
    elif attention_mask is not None:
        bias = attention_mask if bias is None else bias + attention_mask
    bias = None if bias is None else bias.to(dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    sinks = () if kwargs.get("s_aux") is None else (kwargs["s_aux"],)
    return attend(query, key, value, bias, scale, *sinks).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def marked(network: Any) -> Iterator[None]:
    """`network` with its attention and its experts marked, for as long as it is being captured.

    T5's encoder and decoder have copies of its config; in early releases `set_attn_implementation` does not change
    them.
    """
    own = [
        module.config for module in network.modules() if isinstance(getattr(module, "config", None), PretrainedConfig)
    ]
    configs = {id(config): config for config in own}.values()
    before = [(config._attn_implementation, config._experts_implementation) for config in configs]
    latents = [module for module in network.modules() if hasattr(module, "expand_kv")]
    for config in configs:
        config._attn_implementation, config._experts_implementation = NAME, expert_layers.NAME
    for module in latents:
        module.expand_kv = partial(_expanded, module)
    try:
        yield
    finally:
        for config, implementations in zip(configs, before, strict=True):
            config._attn_implementation, config._experts_implementation = implementations
        for module in latents:
            del module.expand_kv


def _expanded(module: Any, latent: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values from DeepSeek's latents [B, 1, C, R], as its own function makes them, with no write in place."""
    mapped = module.kv_b_proj(latent.to(module.kv_b_proj.weight.dtype)).to(latent.dtype)  # caches may be wider
    both = mapped.unflatten(-1, (-1, module.qk_nope_head_dim + module.v_head_dim))
    keys, values = both[:, 0].transpose(1, 2).split([module.qk_nope_head_dim, module.v_head_dim], -1)
    return torch.cat([keys, rotated.expand(-1, keys.shape[1], -1, -1)], -1), values


class _Layer(CacheLayerMixin):
    """The methods that a cache layer must have but that are not used here."""

    is_compileable = True
    is_sliding = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in earlier releases


class RecordingLayer(_Layer):
    """Caches nothing from step to step; holds what a model would have cached."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return query_length if isinstance(query_length, int) else query_length.shape[0], 0

    def get_seq_length(self, *args: Any) -> int:
        return 0


class ReplacingLayer(RecordingLayer):
    """Holds what a model would have cached, and returns buffers in its place."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.buffers = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        super().update(key_states, value_states)
        return self.buffers


class BufferLayer(_Layer):
    """Writes new states into given buffers [B, K, C, D], in the slots `at` [B * L], row by row.

    `length`, the first new token's position, is for models that count cached tokens themselves. Both are tensors, so
    that a graph captured once serves all lengths.
    """

    def __init__(self, keys: Tensor, values: Tensor, at: Tensor, length: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.at, self.length, self.is_initialized = keys, values, at, length, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        write(self.keys, self.at, key_states)
        write(self.values, self.at, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return self.keys.shape[-2], 0

    def get_seq_length(self, *args: Any) -> Any:
        return self.length


def recording() -> Cache:
    """A cache whose layers record the states that attention writes."""
    return Cache(layer_class_to_replicate=RecordingLayer)


def recorded(cache: Any) -> list[Tensor]:
    """Keys and values of each layer in turn.

    A layer that cached none, because its attention is skipped, gets another layer's, so that its buffers keep their
    place among all layers.
    """
    cached = [layer for layer in cache.layers if layer.keys is not None]
    layers = [layer if layer.keys is not None else cached[0] for layer in cache.layers if cached]
    return [states for layer in layers for states in (layer.keys, layer.values)]


def cache_over(buffers: Sequence[Tensor], slots_BL: Tensor, length: Tensor) -> Cache:
    """A cache over given buffers, keys and values of each layer in turn, which takes new states in at `slots_BL`."""
    at = slots_BL.flatten()
    return Cache(layers=[BufferLayer(keys, values, at, length) for keys, values in _pairs(buffers)])


def replaced(buffers: Sequence[Tensor]) -> Cache:
    """A cache that returns `buffers` to attention, and holds the new keys and values for `recorded`."""
    return Cache(layers=[ReplacingLayer(keys, values) for keys, values in _pairs(buffers)])


def _pairs(buffers: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(buffers[::2], buffers[1::2], strict=True)
