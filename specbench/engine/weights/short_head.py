"""A short head: a draft that proposes only the likeliest tokens reads fewer weights (FR-Spec, Zhao et al. 2025)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specbench.engine.eager.network_parts import changed_after_head
from specbench.errors import UserError


class ShortHead(nn.Module):
    """Logits [V] of the `kept` rows of a head; minus infinity elsewhere."""

    def __init__(self, head: Any, kept: Sequence[int]) -> None:
        super().__init__()
        size, width = head.weight.shape
        rows = torch.tensor(kept, device=head.weight.device)
        self.head = nn.Linear(width, len(kept), head.bias is not None, device=rows.device, dtype=head.weight.dtype)
        with torch.no_grad():
            self.head.weight.copy_(head.weight[rows])
            if head.bias is not None:
                self.head.bias.copy_(head.bias[rows])
        place_V = torch.full((size,), len(kept), device=rows.device)
        place_V[rows] = torch.arange(len(kept), device=rows.device)
        self.place_V = nn.Parameter(place_V, requires_grad=False)  # the kept row of each token; N: none

    @property
    def weight(self) -> Tensor:
        """[N, D]."""
        return self.head.weight

    def forward(self, states: Tensor) -> Tensor:
        logits = self.head(states)
        return functional.pad(logits, (0, 1), value=-math.inf).index_select(-1, self.place_V)


def shorten_head(network: Any, kept: Sequence[int], key: str) -> None:
    """Let `network` predict only the tokens `kept`. Raises UserError if it changes its logits after the head."""
    if (reason := changed_after_head(network)) is not None:
        raise UserError(f"{key}.top_tokens: {reason}; leave top_tokens unset")
    network.set_output_embeddings(ShortHead(network.get_output_embeddings(), kept))
