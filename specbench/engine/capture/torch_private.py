"""The private parts of torch that are used. Tried on torch 2.11 and 2.13.

OneDNN's weight layout, the tracer of `make_fx`, graphs that become Python only when they run, and sizes left open.

Shapes: B rows, L tokens, E channels.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["LazyGraphModule", "computes_bf16", "lay_out", "make_fx", "open_sizes", "packed_linear"]


def computes_bf16() -> bool:
    """Whether oneDNN computes in bf16 on this CPU."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def lay_out(weight: Tensor) -> Tensor:
    """`weight` as oneDNN reads it fastest, for `packed_linear`."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 1)
    return packed


def packed_linear(input_BLE: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, with W as `lay_out` returned it."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(input_BLE, packed, bias, "none", [], "")
    return product


def open_sizes(examples: Mapping[str, int]) -> tuple[dict[str, Any], Callable[..., Tensor]]:
    """Sizes that stand for any size, by name, and what makes tensors of such sizes without data.

    As in a capture with these `examples`, which all differ. The second is a function of (shape, dtype=, device=).
    """
    from torch._dynamo.source import ConstantSource
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    sizes = {}
    for name, example in examples.items():
        given = torch.empty(example, device="meta")
        sizes[name] = mode.from_tensor(given, static_shapes=False, source=ConstantSource(name)).shape[0]

    def without_data(shape: Any, **options: Any) -> Tensor:
        with mode:
            return torch.empty(shape, **options)

    return sizes, without_data
