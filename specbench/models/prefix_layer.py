"""Hydra++'s layer before its heads (Ankner et al. 2024): a decoder layer over the target's last states, and its cache.

Shapes: L tokens, C tokens so far, D the target's width, H query heads, K key heads, E channels of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.models.eagle_layer import DraftLayer, LayerShape, Norm


class PrefixLayer(nn.Module):
    """A whole decoder layer with the norms before and after it."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.shape = shape
        self.input_layernorm, self.norm = Norm(shape), Norm(shape)
        self.layer = DraftLayer(shape, shape.width)


class PrefixCache:
    """The layer's outputs for the tokens of one text."""

    def __init__(self, layer: PrefixLayer) -> None:
        self.layer = layer
        self.out_LD = torch.empty(0)
        self._cached: tuple[Tensor, Tensor] | None = None  # keys and values [1, K, C, E]

    @property
    def length(self) -> int:
        return len(self.out_LD)

    @torch.inference_mode()
    def read(self, states_LD: Tensor) -> None:
        """Read on: the target's states of the next tokens."""
        layer, first = self.layer, self.length
        states_1LD = states_LD.unsqueeze(0)
        positions_1L = torch.arange(first, first + len(states_LD), device=states_LD.device).unsqueeze(0)
        out_1LD = layer.layer(states_1LD, layer.input_layernorm(states_1LD), positions_1L, self._attend, None)
        out_LD = layer.norm(out_1LD)[0]
        self.out_LD = torch.cat([self.out_LD, out_LD]) if first else out_LD

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens at most."""
        if length < self.length and self._cached is not None:
            keys, values = self._cached
            self.out_LD, self._cached = self.out_LD[:length], (keys[:, :, :length], values[:, :, :length])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self._cached is not None:
            key, value = (torch.cat(pair, 2) for pair in zip(self._cached, (key, value), strict=True))
        self._cached = key, value
        new, seen = query.shape[2], key.shape[2]
        visible_LC = torch.ones(new, seen, dtype=torch.bool, device=query.device).tril(seen - new)
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        return F.scaled_dot_product_attention(query, key, value, visible_LC, scale=self.layer.shape.scale)
