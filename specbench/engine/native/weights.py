"""Weights of a linear map as `kernels.c` reads them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from specbench.engine import paged
from specbench.kernels import large_pages, library
from specbench.kernels.check import HALF_SCALES
from specbench.kernels.found_levels import packed_as_found
from specbench.kernels.levels import packed

# Of a weight at a time, so that little of one in a file is in memory: rows, in whole blocks, and about so many bytes.
PACKED_ROWS, PACKED_BYTES, BLOCKS = 8192, 2**22, 128


def laid_out(weight: Tensor) -> Tensor:
    """A weight [N, K] as `kernels.c` reads it."""
    weight, (outputs, inner) = weight.contiguous(), weight.shape
    made = large_pages.empty(library().packed_size(outputs, inner), weight.dtype)
    few = min(PACKED_ROWS, max(BLOCKS, PACKED_BYTES // (inner * weight.itemsize) // BLOCKS * BLOCKS))
    place, of_rows = made.data_ptr(), library().packed_size(few, inner) * made.itemsize
    for rows in weight.split(few):
        library().pack(rows.data_ptr(), place, len(rows), inner, weight.dtype == torch.bfloat16)
        paged.release(rows)
        place += of_rows
    return made


# Layouts of a linear map's weights, by the bits of their levels; 0: they are numbers of the model.
LAYOUTS: dict[int, Callable[[Tensor], Tensor]] = {
    0: laid_out, 8: partial(packed, bits=8), 4: partial(packed, bits=4),
    8 | HALF_SCALES: partial(packed_as_found, bits=8 | HALF_SCALES),
    4 | HALF_SCALES: partial(packed_as_found, bits=4 | HALF_SCALES),
}  # fmt: skip
