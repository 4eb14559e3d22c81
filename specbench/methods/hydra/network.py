"""Hydra's heads over a frozen network's last states, and Hydra++'s layer before them (Ankner et al. 2024)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.saved_heads import SavedHeads
from specbench.methods.blockwise.network import in_units
from specbench.methods.decoder_layer import DraftLayer, LayerShape, Norm
from specbench.methods.medusa.network import LowRank, Project


class HydraHeads(SavedHeads):
    """Heads that also see the tokens before the token that they predict: head k the last k of them."""

    KIND, RECIPE, SHAPE = "hydra", "hydra", ("heads", "width", "narrow", "rank", "vocabulary")
    prefix = None  # published heads may have a layer before them

    def __init__(self, heads: int, width: int, narrow: int, rank: int, vocabulary: int) -> None:
        super().__init__()
        self.heads, self.width, self.narrow, self.rank, self.vocabulary = heads, width, narrow, rank, vocabulary
        self.narrow_DM = nn.Parameter(torch.randn(width, narrow) * width**-0.5)
        self.weight_KDD = nn.Parameter(torch.zeros(heads, width, width))
        self.bias_KD = nn.Parameter(torch.zeros(heads, width))
        read = [(head + 1) * narrow for head in range(heads)]
        self.gates = nn.ParameterList(nn.Parameter(torch.zeros(numbers, width)) for numbers in read)
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(numbers, width)) for numbers in read)
        self.output = LowRank(heads, width, rank, vocabulary)

    def operations(self, rows: int) -> float:
        """Arithmetic operations of one head at one position, the mean over heads; `rows` logits each."""
        return 2.0 * (sum(weight.numel() for weight in self.parameters()) / self.heads + rows * self.width)

    def narrowed(self, embeddings: Tensor) -> Tensor:
        """Embeddings [..., D] of tokens as the heads read them, [..., M]."""
        units = F.rms_norm(embeddings.to(self.narrow_DM.dtype), (self.width,))
        return F.linear(units, self.narrow_DM.t())

    def logits(self, states_ND: Tensor, read_NJM: Tensor, project: Project) -> Tensor:
        """[N, V] of head J, from the J tokens after each state, narrowed."""
        head = read_NJM.shape[1] - 1
        size_N1, units_ND = in_units(states_ND)
        read_NE = read_NJM.flatten(1)
        gate_ND = F.linear(units_ND, self.weight_KDD[head].t(), self.bias_KD[head])
        gate_ND = gate_ND + F.linear(read_NE, self.gates[head].t())
        units_ND = units_ND + F.linear(read_NE, self.shifts[head].t()) + F.silu(gate_ND)
        more_NV: Tensor = self.output(units_ND, head)
        return project(size_N1 * units_ND) + more_NV


# Hydra++'s layer before its heads (Ankner et al. 2024): a decoder layer over the target's last states, and its cache.
#
# Shapes: L tokens, C tokens so far, D the target's width, H query heads, K key heads, E channels of a head.


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
        """Run the layer on the target's states [L, D] of the next tokens, and append its outputs."""
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
