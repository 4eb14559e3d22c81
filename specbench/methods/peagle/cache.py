"""The cache of P-EAGLE's layers for one sequence.

It holds the entries with the target's features; the masked ones after them are dropped.

Shapes: L new entries, K rows of a proposal, C slots, V logits, F numbers of a target's feature.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from specbench.engine.capture.static_sessions import MOST_OF_MASK
from specbench.methods.decoder_layer import LayerCache, mask_bias
from specbench.methods.peagle.network import PEagle


class PEagleCache:
    """Keys and values of the first `length` entries of one sequence, in each layer."""

    def __init__(self, network: PEagle) -> None:
        self.network = network
        self.length = 0
        self._cache = LayerCache(network.shape.layer, network.shape.layers, network.fc.weight)

    def draft_rows(self, features_LF: Tensor, tokens: Sequence[int], rows: int) -> Tensor:
        """Read entries on of the target's features and these tokens; logits [K, V] of the next `rows` tokens."""
        most = max(1, MOST_OF_MASK // (self.length + len(tokens) + rows))
        if len(tokens) > most:  # a long prompt in parts
            self.draft_rows(features_LF[:-most], tokens[:-most], 1)
            features_LF, tokens = features_LF[-most:], tokens[-most:]
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
