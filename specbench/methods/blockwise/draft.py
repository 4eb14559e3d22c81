"""Blockwise drafting: heads on the target's own last state predict the tokens after the next, all at once.

Stern, Shazeer, Uszkoreit 2018. The run that verifies one block also gives the state that the next one is predicted
from (their "combined scoring and proposal"), so a pass is one run of the target and one small layer. Head 1 is the
target's own, and its token is the one that every pass emits itself: with k heads at most k - 1 tokens are drafted.

Given the context the heads are independent of each other: a token's q is its head's distribution and does not depend on
the draft tokens before it, so Algorithm 1 applies unchanged. The first pass of a completion may have no state yet; then
it drafts nothing.

A head is a feed-forward layer with a residual connection around it, then the network's own output projection; heads
2 ... k are here.

Shapes: K = k - 1 heads, N positions, D the target's width, H the layer's.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.algorithm.draft import Draft
from specbench.engine.eager.model import EagerModel
from specbench.methods.heads import HeadsBuilder, HeadsDraft, Project, TrainedHeads


class BlockwiseHeads(TrainedHeads):
    """Heads 2 ... k. They start as copies of head 1: the layer's second half is zero."""

    KIND, RECIPE, SHAPE = "blockwise", "blockwise", ("heads", "width", "hidden")

    def __init__(self, heads: int, width: int, hidden: int) -> None:
        """`heads` is k, with the network's own."""
        super().__init__()
        self.heads, self.width, self.hidden = heads, width, hidden
        self.into_KDH = nn.Parameter(torch.randn(heads - 1, width, hidden) * width**-0.5)
        self.into_bias_K1H = nn.Parameter(torch.zeros(heads - 1, 1, hidden))
        self.out_KHD = nn.Parameter(torch.zeros(heads - 1, hidden, width))
        self.out_bias_K1D = nn.Parameter(torch.zeros(heads - 1, 1, width))

    @property
    def later(self) -> int:
        return self.heads - 1

    def logits(self, states_ND: Tensor, which: slice, project: Project) -> Tensor:
        """[K, N, V] of the heads `which`, 0 being head 2."""
        read_KND = self(states_ND, which)
        return project(read_KND.flatten(0, 1)).view(*read_KND.shape[:2], -1)

    def forward(self, states_ND: Tensor, which: slice = slice(None)) -> Tensor:
        """[K, N, D]: what the output projection reads for the heads `which`, 0 being head 2.

        The layer works in units of each state's size: T5 scales its states down before a tied head.
        """
        size_N1, units_ND = in_units(states_ND)
        changes = [self._change(units_ND, head) for head in range(self.heads - 1)[which]]
        heads = len(changes)
        rows = states_ND.repeat(heads, 1) + size_N1.repeat(heads, 1) * torch.cat(changes)
        return rows.view(heads, *states_ND.shape)

    def _change(self, units_ND: Tensor, head: int) -> Tensor:
        inner_NH = F.relu(F.linear(units_ND, self.into_KDH[head].t(), self.into_bias_K1H[head, 0]))
        return F.linear(inner_NH, self.out_KHD[head].t(), self.out_bias_K1D[head, 0])


def in_units(states_ND: Tensor) -> tuple[Tensor, Tensor]:
    """The size [N, 1] of each state (the root of its mean square), and the state in units of it."""
    size_N1 = states_ND.float().pow(2).mean(-1, keepdim=True).sqrt().to(states_ND.dtype)
    return size_N1, F.rms_norm(states_ND, states_ND.shape[-1:])


class BlockwiseBuilder(HeadsBuilder):
    """Builds `draft=blockwise`."""

    heads = BlockwiseHeads

    def longest(self) -> int:
        return super().longest() - 1

    def build_draft(self, target: EagerModel) -> Draft:
        return HeadsDraft(target, BlockwiseHeads.load(self.folder, target.network, self.request.key))
