"""Blockwise heads: small layers over a frozen network's last states that predict the tokens after the next.

Stern, Shazeer, Uszkoreit 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models": a feed-forward layer for
each head, with a residual connection around it, then the network's own output projection. Head 1 is the network's own
and needs no layer; heads 2 ... k are here.

Shapes: K = k - 1 heads, N positions, D the network's width, H the layer's.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.saved_heads import SavedHeads


class BlockwiseHeads(SavedHeads):
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

    def forward(self, states_ND: Tensor, which: slice = slice(None)) -> Tensor:
        """[K, N, D]: what the output projection reads for the heads `which`, 0 being head 2.

        The layer works in units of each state's size: T5 scales its states down before a tied head.
        """
        size_N1, units_ND = in_units(states_ND)
        inner_KNH = F.relu(self.products.matmul(units_ND, self.into_KDH[which]) + self.into_bias_K1H[which])
        return states_ND + size_N1 * (self.products.matmul(inner_KNH, self.out_KHD[which]) + self.out_bias_K1D[which])


def in_units(states_ND: Tensor) -> tuple[Tensor, Tensor]:
    """The size [N, 1] of each state (the root of its mean square), and the state in units of it."""
    size_N1 = states_ND.float().pow(2).mean(-1, keepdim=True).sqrt().to(states_ND.dtype)
    return size_N1, F.rms_norm(states_ND, states_ND.shape[-1:])
