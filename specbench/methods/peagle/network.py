"""P-EAGLE's decoder layers, and what stands for the tokens that are not known yet.

2602.01469: the first layer is EAGLE-3's, and ordinary decoder layers may follow. Entry j joins the target's state of
token j and the embedding of token j + 1, and predicts token j + 2. After the last such entry stand further ones that
join a learned state and the embedding of a mask token: the k-th predicts the token k places later. So a proposal of γ
tokens is one forward pass over the new tokens' entries and γ - 1 masked ones. An entry attends to those before it.

Shapes: B rows, T entries of the text, P of them that masked entries follow, L all entries, D width, F numbers of a
target's feature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.capture.static_sessions import tokens_at_once
from specbench.methods.at_once import masked_entries
from specbench.methods.decoder_layer import Attend, DraftLayer, LayerCache, LayerShape, Norm, Source, mask_bias
from specbench.methods.eagle.network import Eagle, EagleShape

OURS = "peagle"  # the field of config.json by which folders of our recipe are known


@dataclass(frozen=True)
class PEagleShape(EagleShape):
    """EAGLE-3's shape. `layers`: decoder layers; `mask`: the token that stands for those not known yet."""

    layers: int = 1
    mask: int = 0

    @property
    def kind(self) -> str:
        return "peagle"


class LaterLayer(nn.Module):
    """A decoder layer after the first, with the norm before its self-attention."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape)
        self.layer = DraftLayer(shape, shape.width)

    def forward(self, states_BLD: Tensor, positions_BL: Tensor, attend: Attend) -> Tensor:
        found: Tensor = self.layer(states_BLD, self.input_layernorm(states_BLD), positions_BL, attend, None)
        return found


class PEagle(Eagle):
    """The layers with their input and output modules. `bind` connects them to the target's head and embeddings."""

    KIND, RECIPE, FILE, FIELD = "P-EAGLE", "peagle", "peagle.safetensors", OURS
    SHAPES = PEagleShape
    shape: PEagleShape

    def __init__(self, shape: PEagleShape) -> None:
        super().__init__(shape)
        self.later = nn.ModuleList(LaterLayer(shape.layer) for _ in range(shape.layers - 1))
        self.mask_hidden = nn.Parameter(torch.randn(shape.feature_width))

    def through(
        self, states_BLD: Tensor, embedded_BLD: Tensor, positions_BL: Tensor, attends: Sequence[Attend]
    ) -> Tensor:
        """States [B, L, D] after all layers, of entries that join `states_BLD` and embeddings."""
        states_BLD = self(states_BLD, embedded_BLD, positions_BL, attends[0], None)
        for layer, attend in zip(self.later, attends[1:], strict=True):
            states_BLD = layer(states_BLD, positions_BL, attend)
        return states_BLD

    @property
    def layers(self) -> int:
        return self.shape.layers

    def width_of(self, kind: str) -> int:
        return self.shape.feature_width

    def step(
        self, kind: str, ids_BL: Tensor, states: Tensor, positions_BL: Tensor, attends: Sequence[Attend],
        source: Source | None,
    ) -> Tensor:  # fmt: skip
        embedded_BLD = self.embed(ids_BL, positions_BL + 1)
        found_BLD = self.through(self.fuse(states), embedded_BLD, positions_BL, attends)
        if kind == "read":
            found_BLD = found_BLD[:, -1:]
        return torch.cat([self.logits(found_BLD), found_BLD], -1)

    def masked(self, positions_BL: Tensor) -> tuple[Tensor, Tensor]:
        """What masked entries at `positions_BL` join: states and embeddings [B, L, D]."""
        ids_BL = torch.full_like(positions_BL, self.shape.mask)
        embedded_BLD = self.embed(ids_BL, positions_BL + 1)
        state_D = self.fuse(self.mask_hidden.to(embedded_BLD.dtype))
        return state_D.expand(*positions_BL.shape, -1), embedded_BLD

    def along(self, features_BTF: Tensor, embedded_BTD: Tensor, places: Sequence[Tensor]) -> list[Tensor]:
        """The states of whole texts: [B, T, D] of their entries, then [B, P, D] of the masked entries of each depth.

        See `masked_entries`. Row p of depth k is about what the target computes at `places[k - 1][p]` + k + 1.
        """
        rows, length = embedded_BTD.shape[:2]
        positions_L, seen_LL = masked_entries(length, places, embedded_BTD.device)
        positions_BL = positions_L.expand(rows, -1)
        states_BLD, masked_BLD = self.masked(positions_BL[:, length:])
        states_BLD = torch.cat([self.fuse(features_BTF), states_BLD], 1)
        embedded_BLD = torch.cat([embedded_BTD, masked_BLD.to(embedded_BTD.dtype)], 1)
        attend = partial(_attended, seen_LL, self.shape.layer.scale)
        found_BLD = self.through(states_BLD, embedded_BLD, positions_BL, [attend] * self.shape.layers)
        return list(found_BLD.split([length, *map(len, places)], 1))


def _attended(seen_LL: Tensor, scale: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    bias = mask_bias(seen_LL, query.dtype)
    return F.scaled_dot_product_attention(query, key, value, bias, scale=scale, enable_gqa=True)


# The cache of the layers for one sequence. It holds the entries with the target's features; the masked ones after them
# are dropped.
#
# Shapes: L new entries, K rows of a proposal, C slots, V logits.


class PEagleCache:
    """Keys and values of the first `length` entries of one sequence, in each layer."""

    def __init__(self, network: PEagle) -> None:
        self.network = network
        self.length = 0
        self._cache = LayerCache(network.shape.layer, network.shape.layers, network.fc.weight)

    def draft_rows(self, features_LF: Tensor, tokens: Sequence[int], rows: int) -> Tensor:
        """Read entries on of the target's features and these tokens; logits [K, V] of the next `rows` tokens."""
        most = tokens_at_once(self.length + len(tokens) + rows)
        while len(tokens) > most:  # a long prompt in parts
            self.draft_rows(features_LF[:most], tokens[:most], 1)
            features_LF, tokens = features_LF[most:], tokens[most:]
        network, first, known = self.network, self.length, len(tokens)
        device = features_LF.device
        end = first + known + rows - 1
        self._cache.reserve(end)
        positions_1L = torch.arange(first, end, device=device).unsqueeze(0)
        embedded_1LD = network.embed(torch.tensor([list(tokens)], device=device), positions_1L[:, :known] + 1)
        states_1LD, masked_1LD = network.masked(positions_1L[:, known:])
        states_1LD = torch.cat([network.fuse(features_LF).unsqueeze(0), states_1LD], 1)
        bias = None
        if end - first > 1:
            seen_LC = torch.arange(end, device=device) <= positions_1L[0, :, None]
            bias = mask_bias(seen_LC, self._cache.dtype)[None, None]
        attends = [partial(self._cache.attend, layer, end, bias) for layer in range(network.shape.layers)]
        found_1LD = network.through(states_1LD, torch.cat([embedded_1LD, masked_1LD], 1), positions_1L, attends)
        self.length += known
        return network.logits(found_1LD[0, known - 1 :])

    def rollback(self, length: int) -> None:
        """Drop all but the first `length` entries."""
        self.length = min(self.length, max(0, length))
