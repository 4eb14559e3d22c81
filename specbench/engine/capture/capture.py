"""A function of tensors recorded as a graph, for every size of its inputs at once.

The model itself is run on stand-ins without data, so this costs no arithmetic and no memory, whatever the model's size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from specbench.engine.capture.torch_private import LazyGraphModule, make_fx


def example_sizes(taken: set[int], count: int) -> list[int]:
    """Sizes to capture with, each standing for any size; none is in `taken`, or two sizes would be taken for one."""
    free = (size for size in range(7, 10_000, 2) if size not in taken)
    return [next(free) for _ in range(count)]


def capture(function: Callable[..., Any], inputs: Sequence[Tensor]) -> GraphModule:
    """The operations of `function(*inputs)`, with sizes left open (but for sizes of 1)."""
    with torch.no_grad():
        trace = make_fx(function, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)
        graph: GraphModule = trace(*inputs)
    return LazyGraphModule(graph, graph.graph)
