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

from specbench.engine.beside.declared import Attend, Entries
from specbench.engine.layout import mask_bias
from specbench.methods.at_once import masked_entries
from specbench.methods.decoder_layer import DraftLayer, LayerShape, Norm
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

    def step(self, kind: str, entries: Entries) -> Tensor:
        assert entries.states is not None
        bias, scale = entries.bias(self.layer.bias_by_distance), self.shape.layer.scale
        attends = [entries.attend(layer, bias, scale) for layer in range(self.layers)]
        embedded_BLD = self.embed(entries.ids_BL, entries.positions_BL + 1)
        found_BLD = self.through(self.fuse(entries.states), embedded_BLD, entries.positions_BL, attends)
        if kind == "read":
            found_BLD = found_BLD[:, -1:]
        return torch.cat([self.logits(found_BLD), found_BLD], -1)

    def masked(self, positions_BL: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of masked entries at `positions_BL`: states and embeddings [B, L, D]."""
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
