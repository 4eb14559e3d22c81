"""Weights of a linear map as `kernels.c` reads them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from specbench.kernels import library
from specbench.kernels.levels import packed


def laid_out(weight: Tensor) -> Tensor:
    """A weight [N, K] as `kernels.c` reads it."""
    weight, (outputs, inner) = weight.contiguous(), weight.shape
    made = torch.empty(library().packed_size(outputs, inner), dtype=weight.dtype)
    library().pack(weight.data_ptr(), made.data_ptr(), outputs, inner, weight.dtype == torch.bfloat16)
    return made


# Of a linear map's weights, by the bits of their levels; 0: they are numbers of the model.
LAYOUTS: dict[int, Callable[[Tensor], Tensor]] = {0: laid_out, 8: partial(packed, bits=8), 4: partial(packed, bits=4)}
