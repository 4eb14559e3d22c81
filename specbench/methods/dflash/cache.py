"""The keys and values that a block drafter's layers made of the target's states, for one text.

They depend on the target's states alone: what a rollback leaves needs no second reading. The block's own are written to
the slots after them and dropped.

Shapes: A blocks, L new tokens of the context, or entries of blocks, K drafted tokens, F numbers of a feature, D width.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from specbench.methods.decoder_layer import LayerCache, mask_bias
from specbench.methods.dflash.network import BlockDrafter, visible_to_blocks
from specbench.methods.eagle.cache import Prediction


class BlockCache:
    """The context of one text, of `length` tokens."""

    def __init__(self, drafter: BlockDrafter) -> None:
        self.drafter, self.length = drafter, 0
        shape = drafter.shape
        self._cache = LayerCache(shape.layer, shape.layers, drafter.fc.weight)

    def read(self, features_LF: Tensor) -> None:
        """Read the target's states of the tokens after the first `length`."""
        end, layers = self.length + len(features_LF), self.drafter.layers
        self._cache.reserve(end)
        context_1LD = self.drafter.context(features_LF.unsqueeze(0))
        positions_1L = torch.arange(self.length, end, device=features_LF.device).unsqueeze(0)
        for number, layer in enumerate(layers):
            self._cache.write(number, end, *layer.keys_values(context_1LD, positions_1L))  # type: ignore[operator]
        self.length = end

    def block(self, token: int, most: int) -> Prediction:
        """The first `most` tokens that a block beginning with `token`, the next one, drafts."""
        states_KD = self._blocks(torch.tensor([token]), torch.tensor([self.length]), None)[0, :most]
        return Prediction(states_KD, self.drafter.project(states_KD))

    def blocks(self, tokens: Sequence[int], first: int) -> Tensor:
        """The states [A, K, D] of the tokens of blocks that begin with each of these tokens, numbered from `first`.

        Each block reads the context of the tokens before it.
        """
        places_A = torch.arange(first, first + len(tokens))
        visible = visible_to_blocks(places_A, self.length, self.drafter.shape.block)
        return self._blocks(torch.tensor(tokens), places_A, visible)

    def _blocks(self, ids_A: Tensor, places_A: Tensor, visible: Tensor | None) -> Tensor:
        drafter, shape, device = self.drafter, self.drafter.shape, self.drafter.fc.weight.device
        end = self.length + shape.block * len(ids_A)
        self._cache.reserve(end)
        bias = None if visible is None else mask_bias(visible.to(device), self._cache.dtype)[None, None]
        attends = [partial(self._cache.attend, number, end, bias) for number in range(shape.layers)]
        positions_1L = (places_A[:, None] + torch.arange(shape.block)).view(1, -1).to(device)
        states_1LD = drafter(drafter.embed(drafter.entries(ids_A.to(device)).view(1, -1)), positions_1L, attends)
        found_AKD: Tensor = states_1LD.view(len(ids_A), shape.block, -1)[:, shape.first :]
        return found_AKD

    def rollback(self, length: int) -> None:
        self.length = min(self.length, length)
