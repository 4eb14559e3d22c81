"""Weights that are levels times a scale of fp16 already, as in GGUF files: found again, and packed as they are.

A block of 32 inputs of Q8_0 is `d q` with d of fp16 and q of 8 bits, and one of Q4_0 with q of 4 bits. In fp32 such
products are exact, so that levels and scales follow from the weights, wherever they have been moved, joined or permuted
since: the largest of a block has one of few levels. What is no such product (K-quants, Q4_1) is rounded to 8 bits.

Shapes: N outputs, K inputs, G groups, S of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.deferred import torch
from specbench.kernels import large_pages, library
from specbench.kernels.check import HALF_SCALES
from specbench.kernels.levels import AT_ONCE, GROUP

if TYPE_CHECKING:
    from torch import Tensor

AS_FOUND = -1  # level bits: those that each weight has
LARGEST_LEVELS = {4: (-8, *range(7, 0, -1)), 8: (127, -128, *range(126, 0, -1))}  # of the largest of a block, as tried
TRIED = 64  # rows that are tried before all


def bits_found(weight_NK: Tensor) -> int:
    """The bits of the levels that `weight_NK` consists of, with HALF_SCALES; 0 if it consists of other numbers."""
    if weight_NK.dtype != torch.float32:
        return 0
    for bits in LARGEST_LEVELS:
        parts = (weight_NK[:TRIED], *weight_NK.split(AT_ONCE))
        if all(_levels(part_NK, bits) is not None for part_NK in parts):
            return bits | HALF_SCALES
    return 0


def packed_as_found(weight_NK: Tensor, bits: int) -> Tensor:
    """Weights for which `bits_found` is `bits`, as `kernels.c` reads them: bytes."""
    outputs, inputs = weight_NK.shape
    found = [_levels(part_NK, bits & ~HALF_SCALES) for part_NK in weight_NK.split(AT_ONCE)]
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        raise ValueError("weights are no levels any more")
    levels_NK = torch.cat([levels.to(torch.int8).flatten(1)[:, :inputs] for levels, _ in parts]).contiguous()
    scales_NG = torch.cat([scales.squeeze(-1).half() for _, scales in parts]).contiguous()
    size = bits & ~HALF_SCALES
    made = large_pages.empty(library().levels_size(outputs, inputs, size), torch.uint8)
    library().pack_levels(levels_NK.data_ptr(), scales_NG.data_ptr(), made.data_ptr(), outputs, inputs, size)
    return made


def in_8_bits(weight_NK: Tensor) -> Tensor:
    """`weight_NK` rounded to levels of 8 bits times scales of fp16, as GGUF's Q8_0 rounds."""
    parts = []
    for part_NK in weight_NK.split(AT_ONCE):
        groups = _groups(part_NK)
        scales = (groups.abs().amax(-1, keepdim=True) / 127).half().float()
        levels = torch.where(scales > 0, groups / scales, 0.0).round().clamp(-127, 127)
        parts.append((levels * scales).flatten(1)[:, : weight_NK.shape[1]])
    return torch.cat(parts)


def _groups(weight_NK: Tensor) -> Tensor:
    missing = -weight_NK.shape[1] % GROUP
    groups: Tensor = torch.nn.functional.pad(weight_NK.detach().float(), (0, missing)).unflatten(1, (-1, GROUP))
    return groups


def _levels(weight_NK: Tensor, bits: int) -> tuple[Tensor, Tensor] | None:
    """Levels [N, G, GROUP] and scales [N, G, 1] whose products are the weights; None if there are none."""
    groups = _groups(weight_NK)
    shape, groups_S = groups.shape, groups.flatten(0, 1)
    largest_S = groups_S.gather(-1, groups_S.abs().argmax(-1, keepdim=True))
    levels_S, scales_S = torch.zeros_like(groups_S), torch.zeros_like(largest_S)
    left = largest_S.squeeze(-1).nonzero().squeeze(-1)
    lowest = -(2 ** (bits - 1))
    for most in LARGEST_LEVELS[bits]:
        if not len(left):
            break
        scales = (largest_S[left] / most).half().float()
        levels = (groups_S[left] / scales).round()
        fits = (levels * scales == groups_S[left]) & (levels >= lowest) & (levels < -lowest)
        whole = fits.all(-1)
        if not bool(whole.any()) and most == LARGEST_LEVELS[bits][1]:
            return None  # weights of other numbers: no block has a level that almost all have
        levels_S[left[whole]], scales_S[left[whole]] = levels[whole], scales[whole]
        left = left[~whole]
    return None if len(left) else (levels_S.view(shape), scales_S.view(*shape[:2], 1))
