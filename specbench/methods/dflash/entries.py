"""A block drafter's layers over the context of one text, and blocks after it.

Keys and values of the context depend only on the target's states, so that entries that a rollback leaves are not read
again. A block's own are written to the slots after them and dropped.

Shapes: A blocks, L new tokens of the context, or entries of blocks, K drafted tokens, F numbers of a feature, D width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.beside.declared import EntrySession, Prediction, TextEntries
from specbench.engine.beside.eager import EagerEntries
from specbench.engine.layout import Layout
from specbench.methods.dflash.network import BlockDrafter, visible_to_blocks

READ_AT_ONCE = 256  # tokens of the context, which do not depend on each other: a layout is tokens times slots


class BlockEntries(TextEntries):
    """The context of one text."""

    def __init__(self, drafter: BlockDrafter, session: EntrySession) -> None:
        self.drafter, self.session = drafter, session

    @torch.inference_mode()
    def read(self, features_LF: Tensor) -> None:
        """Read the target's states of the tokens after the first `length`."""
        for part_LF in features_LF.split(READ_AT_ONCE):
            self.session.run("context", [0] * len(part_LF), part_LF)
            self.session.length += len(part_LF)

    @torch.inference_mode()
    def block(self, token: int, most: int) -> Prediction:
        """The first `most` tokens that a block beginning with `token`, the next one, drafts."""
        shape, rows = self.drafter.shape, self.drafter.rows
        found_LV = self.session.run("block", [token, *[shape.mask] * (shape.block - 1)])
        found_LV = found_LV[shape.first : shape.first + most]
        return Prediction(found_LV[:, rows:], found_LV[:, :rows])


class ScoredBlocks(BlockEntries):
    """The context of one text, over a session of the modules, which also runs blocks at many places of it at once."""

    session: EagerEntries

    def blocks(self, tokens: Sequence[int], first: int) -> Tensor:
        """The states [A, K, D] of the tokens of blocks that begin with each of these tokens, numbered from `first`.

        Each block reads the context of the tokens before it.
        """
        shape, device, length = self.drafter.shape, self.drafter.device, self.length
        places_A = torch.arange(first, first + len(tokens))
        ids_L = self.drafter.entries(torch.tensor(tokens)).flatten()
        positions_L = (places_A[:, None] + torch.arange(shape.block)).flatten()
        slots_1L = torch.arange(length, length + len(ids_L)).unsqueeze(0)
        positions_1C = torch.cat([torch.arange(length), positions_L]).unsqueeze(0)
        visible_1LC = visible_to_blocks(places_A, length, shape.block).unsqueeze(0)
        self.session.reserve(positions_1C.shape[1])
        layout = Layout(*(tensor.to(device) for tensor in (slots_1L, positions_1C, visible_1LC)))
        states_1LD = self.drafter.states(self.session.entries(ids_L.tolist(), None, layout, True))
        return states_1LD.view(len(tokens), shape.block, -1)[:, shape.first :]
