"""Blockwise drafting: heads on the target's own last state predict the tokens after the next, all at once.

Stern, Shazeer, Uszkoreit 2018. The run that verifies one block also gives the state that the next one is predicted
from (their "combined scoring and proposal"), so a pass is one run of the target and one small layer. Head 1 is the
target's own, and its token is the one that every pass emits itself: with k heads at most k - 1 tokens are drafted.

Given the context the heads are independent of each other: a token's q is its head's distribution and does not depend on
the draft tokens before it, so Algorithm 1 applies unchanged. The first pass of a completion may have no state yet; then
it drafts nothing.

Shapes: G drafted tokens, L positions, D the target's width, V tokens of the vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.algorithm.draft import Draft
from specbench.engine.eager.model import EagerModel
from specbench.methods.blockwise.network import BlockwiseHeads
from specbench.methods.heads import HeadsBuilder, OnStates


class BlockwiseDraft(OnStates):
    """`heads` on the states of `target`; `project` is its output projection."""

    def __init__(
        self, target: EagerModel, heads: BlockwiseHeads, project: Callable[[Tensor], Tensor], rows: int
    ) -> None:
        """`rows` is how many logits `project` gives."""
        self.heads = heads
        self.project = project
        layer = sum(weight.numel() for weight in heads.parameters()) // (heads.heads - 1)
        super().__init__(target, 2.0 * (layer + rows * heads.width))

    @property
    def later(self) -> int:
        return self.heads.heads - 1

    @property
    def device(self) -> torch.device:
        return self.heads.device

    def logits(self, states_ND: Tensor, which: slice) -> Tensor:
        read_KND = self.heads(states_ND, which)
        return self.project(read_KND.flatten(0, 1)).view(*read_KND.shape[:2], -1)


class BlockwiseBuilder(HeadsBuilder):
    """Builds `draft=blockwise`."""

    heads = BlockwiseHeads

    def longest(self) -> int:
        return super().longest() - 1

    def draft_on(self, target: EagerModel, rows: int) -> Draft:
        return BlockwiseDraft(
            target, BlockwiseHeads.load(self.folder, target.network, self.request.key), target.project, rows
        )
