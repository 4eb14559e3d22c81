"""Dropout that costs a CPU little: a random byte per element in place of a random float.

torch draws dropout masks on the CPU one number at a time and on one core, which takes a third of a training step at
the size of the shipped models. Independent of the model it is put into.
"""

from __future__ import annotations

import torch
from torch import nn

LEVELS = 256


class ByteDropout(nn.Dropout):
    """`nn.Dropout` with its rate rounded to 1/256."""

    def __init__(self, p: float) -> None:
        super().__init__(p)
        self.dropped = round(p * LEVELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.dropped == 0:
            return x
        # One 64-bit draw gives eight bytes; random_(low, None) draws from the whole range of int64.
        draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        keep = (draws.view(torch.uint8)[: x.numel()] >= self.dropped).view(x.shape)
        return x * keep.to(x.dtype).mul_(LEVELS / (LEVELS - self.dropped))


def use_byte_dropout(model: nn.Module) -> None:
    """Replace every `nn.Dropout` inside `model`."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                setattr(module, name, ByteDropout(child.p))
