"""A captured step over several rows compared with that over one row, which `engines` compares with the network.

Shapes: B rows, L tokens, K key heads, C slots, D channels of a head, V logits.
"""

import torch
from torch import Tensor

from specbench.models.layout import chain
from specbench.models.program import Program, Step

# The largest difference of two computations of the same logits, of the largest logit.
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
AMPLIFIED = 5.0  # times that: rows are summed in another order, and a network may amplify rounding
ROWS, TOKENS, CACHED, SLOTS = 2, 3, 2, 64  # that are tried; of the source as many slots
SOURCES = (SLOTS, 5)  # tokens of each row's source


@torch.inference_mode()
def rows_agree(
    alone: Program, several: Program, vocabulary_size: int, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether rows that are read together have the logits that each has alone. `dtype` is that of the network."""
    draw = torch.Generator().manual_seed(0)
    tried = ROWS * TOKENS
    ids_BL = ((torch.arange(tried) + 1) * vocabulary_size // (tried + 1)).view(ROWS, TOKENS).to(device)
    layout = chain(CACHED, TOKENS, torch.arange(SLOTS, device=device).unsqueeze(0))
    buffers = [
        torch.randn(ROWS, heads, SLOTS, channels, generator=draw).to(device, several.cache_dtype)
        for kind in ("self", "cross")
        for heads, channels in several.shapes[kind]
    ]
    placed = [tensor.expand(ROWS, *tensor.shape[1:]) for tensor in layout.tensors]
    inputs = [ids_BL, *placed, torch.tensor(SOURCES, device=device), *buffers]
    together_BLV = _run(several.several, inputs)
    each_BLV = torch.cat([_run(alone.several, [one[row : row + 1] for one in inputs]) for row in range(ROWS)])
    apart = (together_BLV - each_BLV).float().abs().max() / each_BLV.float().abs().max()
    return bool(apart <= AMPLIFIED * ROUNDING[dtype])  # not where it is NaN


def _run(step: Step, inputs: list[Tensor]) -> Tensor:
    own = [one.clone() for one in inputs]  # a step writes into buffers
    return step.following(step.of_sizes(*own), *own)
