"""The private parts of torch that are used: oneDNN's weight layout and the tracer of `make_fx`. Tried on torch 2.13.

Shapes: B rows, L tokens, E channels.
"""

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["computes_bf16", "lay_out", "make_fx", "packed_linear"]


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
