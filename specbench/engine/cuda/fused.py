"""Several small operations of a step as one kernel, on a GPU.

A step over one token of a small model is bound by its launches. The kernels are written in Triton, which comes with
torch for CUDA. Where Triton is missing or disagrees with torch, nothing is fused.

Each function computes what the operations that it stands for compute, in torch where tensors are not on a GPU. Sums
within a row are in fp32, and no row depends on another.

Shapes: B rows, L new tokens, E channels.
"""

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import functional

from specbench.engine.capture import kernels
from specbench.engine.capture.nodes import aten, calls, constant, finished, inputs_of, replace, replace_by_call, value

SMALL_MAP = 2**22  # weights of a linear map that takes less time than two launches
WIDEST = 2**14  # channels of a row that one block of a kernel holds
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def add_norm(x_BLE: Tensor, y_BLE: Tensor, weight_E: Tensor, epsilon: float | None) -> tuple[Tensor, Tensor]:
    """x + y, and its RMS norm."""
    if x_BLE.is_cuda:
        from specbench.engine.cuda import triton as triton_kernels

        return triton_kernels.add_norm(x_BLE, y_BLE, weight_E, epsilon)
    whole_BLE = torch.add(x_BLE, y_BLE)
    return whole_BLE, torch.rms_norm(whole_BLE, weight_E.shape, weight_E, epsilon)


def norm_linear(
    x_11E: Tensor, y_11E: Tensor, norm_E: Tensor, epsilon: float | None, weight_NE: Tensor, bias_N: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x + y of one token, and a linear map [1, 1, N] of its RMS norm."""
    if x_11E.is_cuda:
        from specbench.engine.cuda import triton as triton_kernels

        return triton_kernels.norm_linear(x_11E, y_11E, norm_E, epsilon, weight_NE, bias_N)
    whole_11E, normed_11E = add_norm(x_11E, y_11E, norm_E, epsilon)
    return whole_11E, functional.linear(normed_11E, weight_NE, bias_N)


def gated(activation: str, x_BLE: Tensor, gate_BLE: Tensor) -> Tensor:
    """activation(x) times the gate."""
    if x_BLE.is_cuda:
        from specbench.engine.cuda import triton as triton_kernels

        return triton_kernels.gated(activation, x_BLE, gate_BLE)
    return ACTIVATIONS[activation](x_BLE) * gate_BLE


@lru_cache
def available(device: torch.device) -> bool:
    """Whether the fused kernels run on `device` and agree with torch there."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    try:
        with torch.inference_mode():
            return all(_agrees(device, dtype) for dtype in (torch.bfloat16, torch.float32))
    except Exception:  # no Triton, no C compiler for it, a GPU that it does not know
        return False


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    x, y, weight = random(1, 3, 96), random(1, 3, 96), random(96)
    whole, normed = add_norm(x, y, weight, 1e-6)
    pairs = [(whole, x + y), (normed, torch.rms_norm(x + y, (96,), weight, 1e-6))]
    left, right = random(1, 3, 192).split([96, 96], -1)
    pairs += [(gated(name, left, right), ACTIVATIONS[name](left) * right) for name in ACTIVATIONS]
    matrix, bias = random(80, 96) / 10, random(80)
    x, y = x[:, :1], y[:, :1]
    whole, mapped = norm_linear(x, y, weight, 1e-6, matrix, bias)
    normed = torch.rms_norm(x + y, (96,), weight, 1e-6)
    pairs += [(whole, x + y), (mapped, functional.linear(normed, matrix, bias))]
    close = 1e-5 if dtype == torch.float32 else 0.02
    agree = all(torch.allclose(ours, theirs, rtol=close, atol=close) for ours, theirs in pairs)
    buffers = [torch.zeros(1, 2, 8, 48, device=device, dtype=dtype) for _ in range(4)]
    keys, values = (states.view(1, 3, 2, 48).transpose(1, 2) for states in (left, right.contiguous()))
    at = torch.tensor([1, 5, 2], device=device)
    kernels.write_pair(buffers[0], buffers[1], at, keys, values)
    kernels.write(buffers[2], at, keys)
    kernels.write(buffers[3], at, values)
    return agree and torch.equal(buffers[0], buffers[2]) and torch.equal(buffers[1], buffers[3])


def fuse(module: GraphModule, one_token: bool) -> GraphModule:
    """`module`, which is or is not for one token, with fused kernels where the device has them, in place.

    Its RMS norms and activations are one operation each.
    """
    device = getattr(value(inputs_of(module)[0]), "device", None)
    if device is None or not available(device):
        return module
    finished(module)  # what nothing uses any more would seem to read a sum before its norm does
    for node in calls(module, aten.rms_norm.default):
        _fuse_norm(module, node)
    for node in calls(module, aten.mul.Tensor):
        _fuse_gate(node)
    if one_token:
        for node in calls(module, aten.linear.default):
            _fuse_linear(module, node)
    writes = calls(module, kernels.write)
    for first, second in zip(writes[::2], writes[1::2], strict=False):
        _fuse_writes(module, first, second)
    return finished(module)


def _fuse_norm(module: GraphModule, norm: Node) -> None:
    """A norm and the sum that it reads."""
    whole, _, weight, epsilon = (*norm.args, None, None)[:4]  # a capture leaves out defaults at the end
    if (
        not isinstance(whole, Node)
        or whole.target != aten.add.Tensor
        or whole.kwargs
        or constant(module, weight) is None
    ):
        return
    tensors = [value(part) for part in (*whole.args, weight, whole)]
    if not all(isinstance(tensor, Tensor) for tensor in tensors) or len({tensor.dtype for tensor in tensors}) > 1:
        return
    shapes = {tuple(map(str, tensor.shape)) for tensor in (*tensors[:2], tensors[3])}
    place = {node: index for index, node in enumerate(module.graph.nodes)}
    if len(shapes) > 1 or any(place[user] < place[norm] for user in whole.users) or tensors[2].numel() > WIDEST:
        return
    with module.graph.inserting_before(norm):
        both = module.graph.call_function(add_norm, (*whole.args, weight, epsilon))
        parts = [module.graph.call_function(operator.getitem, (both, index)) for index in range(2)]
    for part, node in zip(parts, (whole, norm), strict=True):
        part.meta = dict(node.meta)
    replace(norm, parts[1])
    replace(whole, parts[0])


def _fuse_linear(module: GraphModule, linear: Node) -> None:
    """A linear map, with few weights, of the norm of a sum: with many it is bound by reading them."""
    item, weight, *bias = linear.args
    if not isinstance(item, Node) or item.target is not operator.getitem or item.args[1] != 1 or len(item.users) > 1:
        return
    both, matrix = item.args[0], constant(module, weight)
    if not isinstance(both, Node) or both.target is not add_norm or matrix is None or matrix.numel() > SMALL_MAP:
        return
    if value(item).shape[0] != 1 or matrix.dtype != value(item).dtype or not matrix.is_contiguous():
        return
    place = {node: index for index, node in enumerate(module.graph.nodes)}
    whole = next((user for user in both.users if user.args[1] == 0), None)
    if whole is not None and any(place[user] < place[linear] for user in whole.users):
        return
    with module.graph.inserting_before(linear):
        one = module.graph.call_function(norm_linear, (*both.args, weight, bias[0] if bias else None))
        parts = [module.graph.call_function(operator.getitem, (one, index)) for index in range(2)]
    parts[1].meta = dict(linear.meta)
    replace(linear, parts[1])
    module.graph.erase_node(item)
    if whole is not None:
        parts[0].meta = dict(whole.meta)
        replace(whole, parts[0])
    module.graph.erase_node(both)


def _fuse_writes(module: GraphModule, first: Node, second: Node) -> None:
    """The writes of a layer's keys and of its values, of one row, where nothing reads the keys in between."""
    (keys, at, key_states), (values, also_at, value_states) = first.args, second.args
    place = {node: index for index, node in enumerate(module.graph.nodes)}
    assert isinstance(keys, Node)
    if at is not also_at or value(key_states).shape[0] != 1:
        return
    if list(map(str, value(key_states).shape)) != list(map(str, value(value_states).shape)):
        return
    if any(place[first] < place[user] < place[second] for user in keys.users):
        return
    with module.graph.inserting_before(second):
        module.graph.call_function(kernels.write_pair, (keys, values, at, key_states, value_states))
    module.graph.erase_node(first)
    module.graph.erase_node(second)


def _fuse_gate(product: Node) -> None:
    """A product and the activation of one of its factors."""
    for activated, gate in (product.args, product.args[::-1]):
        name = _activation(activated)
        if name is None or not isinstance(gate, Node) or not isinstance(value(gate), Tensor):
            continue
        assert isinstance(activated, Node)
        x = activated.args[0]
        same = (value(x).dtype, *map(str, value(x).shape)) == (value(gate).dtype, *map(str, value(gate).shape))
        if same and len(activated.users) == 1:
            replace_by_call(product, gated, (name, x, gate))
            return


def _activation(node: Any) -> str | None:
    target = node.target if isinstance(node, Node) else None
    if target in (aten.relu.default, aten.silu.default):
        return "relu" if target == aten.relu.default else "silu"
    if target == aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"
    return None
