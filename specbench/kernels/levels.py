"""Weights of a linear map in 8 or 4 bits: whole levels times a scale, as the kernels of `kernels.c` read them.

`GROUP` inputs of an output share a scale, which is a number of bf16. The weight of the largest magnitude in a group has
the lowest level, -2^(bits - 1). So levels and scales follow from the rounded weights, whether these are held in fp32 or
in bf16, and rounding twice is rounding once. A 4-bit level times its scale, of 5 significant bits, is a number of bf16;
an 8-bit level times its scale is one only after rounding.

Shapes: N outputs, K inputs, G groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.deferred import torch
from specbench.kernels import large_pages, library

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 32  # inputs that share a scale, as in kernels.c
AT_ONCE = 4096  # outputs that are rounded at once: the search needs a few copies of them in fp32
SHARES = {8: (1.0,), 4: (1.0, 0.94, 0.88, 0.82, 0.76)}  # of the largest magnitude, that a scale may cover
CUT_OFF = {8: 16, 4: 19}  # how many of the lowest bits of a scale in fp32 are 0


def rounded(weight_NK: Tensor, bits: int) -> Tensor:
    """The weights as levels of `bits` bits times their scale, in their own dtype.

    In 4 bits the scale of a group is the one of a few whose squared error is least: it may cut off the largest weight.
    """
    found = [_times(*_levels(part_NK, bits, SHARES[bits])) for part_NK in weight_NK.split(AT_ONCE)]
    return torch.cat(found)[:, : weight_NK.shape[1]].to(weight_NK.dtype)


def packed(weight_NK: Tensor, bits: int) -> Tensor:
    """Rounded weights as `kernels.c` reads them: bytes."""
    outputs, inputs = weight_NK.shape
    parts = [_levels(part_NK, bits, SHARES[8]) for part_NK in weight_NK.split(AT_ONCE)]
    levels_NK = torch.cat([levels.to(torch.int8).flatten(1)[:, :inputs] for levels, _ in parts]).contiguous()
    scales_NG = torch.cat([scales.squeeze(-1).bfloat16() for _, scales in parts]).contiguous()
    made = large_pages.empty(library().levels_size(outputs, inputs, bits), torch.uint8)
    library().pack_levels(levels_NK.data_ptr(), scales_NG.data_ptr(), made.data_ptr(), outputs, inputs, bits)
    return made


def _levels(weight_NK: Tensor, bits: int, shares: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Levels [N, G, GROUP] and scales [N, G, 1], both as fp32."""
    lowest = -(2 ** (bits - 1))
    missing = -weight_NK.shape[1] % GROUP
    groups = torch.nn.functional.pad(weight_NK.detach().float(), (0, missing)).unflatten(1, (-1, GROUP))
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    best: tuple[Tensor, Tensor, Tensor] | None = None
    for share in shares:
        scales = ((share / lowest * largest).view(torch.int32) & -(2 ** CUT_OFF[bits])).view(torch.float32)
        scales = torch.where(scales == 0, 1.0, scales)
        levels = (groups / scales).round().clamp(lowest, -lowest - 1)
        if len(shares) == 1:
            return levels, scales
        errors = (levels * scales - groups).square().sum(-1, keepdim=True)
        if best is not None:
            is_better = errors < best[2]
            levels, scales = torch.where(is_better, levels, best[0]), torch.where(is_better, scales, best[1])
            errors = torch.minimum(errors, best[2])
        best = levels, scales, errors
    assert best is not None
    return best[0], best[1]


def _times(levels: Tensor, scales: Tensor) -> Tensor:
    return (levels * scales).flatten(1)
