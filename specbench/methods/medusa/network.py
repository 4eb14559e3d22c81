"""Medusa's and Hydra's heads over a frozen network's last states: head k predicts the token k places after the next.

- Medusa (Cai et al. 2024, arXiv 2401.10774): a residual block h + SiLU(W h + b), then an output layer of its own.
- Hydra (Ankner et al. 2024, arXiv 2402.05109): head k also reads the embeddings of the k tokens between the state and
  the token that it predicts, so that its distribution depends on the candidate.

An output layer of its own would be as large as the network's for each head. Here it is the network's, plus a matrix of
low rank for each head. Blocks work in units of each state's size, for T5 scales its states down before a tied head,
where h + SiLU(W h) could not be of the size of h.

Shapes: K heads, N positions, D the network's width, V its logits, R the rank, J tokens that a head reads, M numbers
that an embedding is narrowed to, L blocks of a head.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.saved_heads import SavedHeads
from specbench.methods.blockwise.network import in_units

Project = Callable[[Tensor], Tensor]  # the network's output projection, [..., D] to [..., V]


class LowRank(nn.Module):
    """For each head a matrix of rank R that is added to the network's output projection; zero at first."""

    def __init__(self, heads: int, width: int, rank: int, vocabulary: int) -> None:
        super().__init__()
        self.down_KDR = nn.Parameter(torch.randn(heads, width, rank) * width**-0.5)
        self.up_KRV = nn.Parameter(torch.zeros(heads, rank, vocabulary))

    def forward(self, units_ND: Tensor, head: int) -> Tensor:
        return F.linear(F.linear(units_ND, self.down_KDR[head].t()), self.up_KRV[head].t())


class MedusaHeads(SavedHeads):
    """Heads that see the state alone. They start as copies of the network's own head."""

    KIND, RECIPE, SHAPE = "medusa", "medusa", ("heads", "width", "layers", "rank", "vocabulary")

    def __init__(self, heads: int, width: int, layers: int, rank: int, vocabulary: int) -> None:
        super().__init__()
        self.heads, self.width, self.layers, self.rank, self.vocabulary = heads, width, layers, rank, vocabulary
        self.weight_LKDD = nn.Parameter(torch.zeros(layers, heads, width, width))
        self.bias_LK1D = nn.Parameter(torch.zeros(layers, heads, 1, width))
        self.output = LowRank(heads, width, rank, vocabulary)

    def operations(self, rows: int) -> float:
        """Arithmetic operations of one head at one position; `rows` is how many logits the projection has."""
        return 2.0 * (sum(weight.numel() for weight in self.parameters()) / self.heads + rows * self.width)

    def logits(self, states_ND: Tensor, which: slice, project: Project) -> Tensor:
        """[K, N, V] of the heads `which`, 0 being the head of the token after the next."""
        size_N1, units_ND = in_units(states_ND)
        chosen = range(self.heads)[which]
        each = [self._units(units_ND, head) for head in chosen]
        more = [self.output(units_ND, head) for units_ND, head in zip(each, chosen, strict=True)]
        # Rows of all heads in one matrix: the projection, the largest of all weights, is read once.
        logits = project(size_N1.repeat(len(chosen), 1) * torch.cat(each)) + torch.cat(more)
        return logits.view(len(chosen), states_ND.shape[0], -1)

    def _units(self, units_ND: Tensor, head: int) -> Tensor:
        """What head `head` makes of the state."""
        for layer in range(self.layers):
            gate_ND = F.linear(units_ND, self.weight_LKDD[layer, head].t(), self.bias_LK1D[layer, head, 0])
            units_ND = units_ND + F.silu(gate_ND)
        return units_ND
