"""The cache of EAGLE's layer for one sequence, over entries with the target's or predicted features.

Entry j joins the feature of token j and the embedding of token j + 1. The first `length` entries hold the target's
features. Drafted entries, in a chain or a tree, are written to the slots from `length` on and dropped when the text
continues: an accepted token's entry is read again with the target's own feature.

Shapes: L new entries, C slots, S tokens of the source, D width, F numbers of a target's feature, V logits.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.capture.static_sessions import MOST_OF_MASK
from specbench.engine.layout import Layout, OpenTree, chain
from specbench.methods.decoder_layer import LayerCache, Source, mask_bias
from specbench.methods.eagle.network import Eagle


class Prediction(NamedTuple):
    """What follows entries: predicted features [L, D], and logits [L, V or more]."""

    states_LD: Tensor
    logits_LV: Tensor


def entry_bias(layout: Layout, bias_HC: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The attention bias [1, 1 or H, L, C]: `bias_HC` of distances, and the dtype's lowest number where hidden."""
    visible = layout.visible_BLC.unsqueeze(1)
    if bias_HC is None:
        return mask_bias(visible, dtype)
    distance_LC = layout.new_positions_BL[0, :, None] - layout.positions_BC
    by_entry = bias_HC.to(dtype)[:, distance_LC.clamp(min=0)].unsqueeze(0)
    return torch.where(visible, by_entry, torch.finfo(dtype).min)


class EagleCache:
    """Keys and values of one sequence's entries, of which the first `length` hold the target's features."""

    def __init__(self, eagle: Eagle, source: Callable[[], Source | None]) -> None:
        """`source` returns what cross-attention reads."""
        self.eagle, self._source = eagle, source
        self.length = 0
        self._tree = OpenTree()
        self._ahead = 0  # entries of a chain of predicted features, after the first `length`
        self._cache = LayerCache(eagle.shape.layer, 1, eagle.fc.weight)
        self._number_slots()

    def read(self, features_LF: Tensor, tokens: Sequence[int]) -> Prediction:
        """Read entries on of the target's own features and these tokens; what follows the last."""
        self.forget()
        end = self.length + len(tokens)
        self._reserve(end)
        most = max(1, MOST_OF_MASK // end)
        for first in range(0, len(tokens), most):
            part = tokens[first : first + most]
            layout, stop = chain(self.length, len(part), self._numbers_1C), self.length + len(part)
            fused_LD = self.eagle.fuse(features_LF[first : first + most])
            states_LD = self._run(fused_LD, part, layout, stop, len(part) == 1)
            self.length = stop
        return self._predicted(states_LD[-1:])

    def draft(self, states_1D: Tensor, token: int) -> Prediction:
        """Continue from a predicted feature and the token drafted from it."""
        place = self.length + self._ahead
        self._reserve(place + 1)
        self._ahead += 1
        return self._predicted(self._run(states_1D, [token], chain(place, 1, self._numbers_1C), place + 1, True))

    def draft_nodes(self, states_LD: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> Prediction:
        """The same of nodes of a tree, numbered on; `states_LD` are predicted at their parents."""
        self._tree.grow(tokens, parents)
        self._reserve(self.length + len(self._tree))
        layout = self._tree.layout(self.length, len(tokens), self._numbers_1C)
        return self._predicted(self._run(states_LD, tokens, layout, self.length + len(self._tree), False))

    def forget(self) -> None:
        """Drop all drafted entries."""
        self._ahead = 0
        self._tree.close()

    def rollback(self, length: int) -> None:
        """Drop all drafted entries, and all but the first `length` others."""
        self.forget()
        self.length = min(self.length, max(0, length))

    def _predicted(self, states_LD: Tensor) -> Prediction:
        return Prediction(states_LD, self.eagle.logits(states_LD))

    def _run(self, states_LD: Tensor, tokens: Sequence[int], layout: Layout, end: int, is_last: bool) -> Tensor:
        """`end`: slots in use, the new entries' included; `is_last`: the one entry sees every slot up to its own."""
        eagle, device = self.eagle, states_LD.device
        positions_1L = layout.new_positions_BL
        embedded_1LD = eagle.embed(torch.tensor([tokens], device=device), positions_1L + 1)
        attend = partial(self._cache.attend, 0, end, self._bias(layout, end, is_last))
        states_1LD: Tensor = eagle(states_LD.unsqueeze(0), embedded_1LD, positions_1L, attend, self._source())
        return states_1LD[0]

    def _bias(self, layout: Layout, end: int, is_last: bool) -> Tensor | None:
        """[1, 1 or H, L, end] in the cache's dtype: of distances, and what is hidden."""
        if is_last:  # distances end - 1 ... 0
            return None if self._bias_HC is None else self._from_far_HC[None, :, None, -end:]
        seen = Layout(layout.slots_BL, layout.positions_BC[:, :end], layout.visible_BLC[:, :, :end])
        return entry_bias(seen, self._bias_HC, self._cache.dtype)

    def _reserve(self, needed: int) -> None:
        if self._cache.reserve(needed):
            self._number_slots()

    def _number_slots(self) -> None:
        self._numbers_1C = torch.arange(self._cache.slots, device=self.eagle.fc.weight.device).unsqueeze(0)
        bias_HC = self.eagle.layer.bias_by_distance(self._numbers_1C[0])
        self._bias_HC = None if bias_HC is None else bias_HC.to(self._cache.dtype)
        self._from_far_HC = torch.empty(0) if self._bias_HC is None else self._bias_HC.flip(-1)
