"""A captured step over several rows compared with that over one row, which `engines` compares with the network.

Shapes: B rows, L tokens, K key heads, C slots, D channels of a head, V logits.
"""

import torch
from torch import Tensor

from specbench.engine.capture.program import Program, Step
from specbench.engine.layout import ragged

# The largest difference of two computations of the same logits, of the largest logit.
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
AMPLIFIED = 5.0  # times that: rows are summed in another order, and a network may amplify rounding
TOKENS, SLOTS = 3, 64  # that are tried; of the source as many slots
CACHED = (2, 9)  # tokens that each row has read
SOURCES = (SLOTS, 5)  # tokens of each row's source


@torch.inference_mode()
def rows_agree(
    alone: Program, several: Program, vocabulary_size: int, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether rows that are read together have the logits that each has alone. `dtype` is that of the network."""
    draw, rows = torch.Generator().manual_seed(0), len(CACHED)
    numbers_1C = torch.arange(SLOTS, device=device).unsqueeze(0)
    buffers = [
        torch.randn(rows, heads, SLOTS, channels, generator=draw).to(device, several.cache_dtype)
        for kind in ("self", "cross")
        for heads, channels in several.shapes[kind]
    ]
    for step, count in (("one", 1), ("several", TOKENS), ("last", TOKENS)):
        ids_BL = ((torch.arange(rows * count) + 1) * vocabulary_size // (rows * count + 1)).view(rows, count).to(device)
        layout = ragged(torch.tensor(CACHED, device=device), count, numbers_1C, numbers_1C)
        inputs = [ids_BL, *layout.tensors, torch.tensor(SOURCES, device=device), *buffers]
        together_BLV = _run(getattr(several, step), inputs)
        each_BLV = torch.cat(
            [_run(getattr(alone, step), [one[row : row + 1] for one in inputs]) for row in range(rows)]
        )
        apart = (together_BLV - each_BLV).float().abs().max() / each_BLV.float().abs().max()
        if not apart <= AMPLIFIED * ROUNDING[dtype]:  # nor where it is NaN
            return False
    return True


def _run(step: Step, inputs: list[Tensor]) -> Tensor:
    own = [one.clone() for one in inputs]  # a step writes into buffers
    return step.after_sizes(step.of_sizes(*own), *own)
