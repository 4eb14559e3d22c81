"""Several small operations of a step as one kernel, on a GPU.

A step over a few tokens of a small model is bound by its launches. The kernels are written in Triton, which comes with
torch for CUDA. Each is compared with torch before it is used: if Triton is missing nothing is fused, and a kernel
that fails or disagrees leaves its operations to torch.

Each function computes what the operations that it stands for compute, in torch if tensors are not on a GPU. Sums
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

MOST_TOKENS = 8  # of a step whose norms are part of the linear maps that follow
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
    return torch_add_norm(x_BLE, y_BLE, weight_E, epsilon)


def torch_add_norm(x_BLE: Tensor, y_BLE: Tensor, weight_E: Tensor, epsilon: float | None) -> tuple[Tensor, Tensor]:
    """`add_norm` by torch's operations."""
    whole_BLE = torch.add(x_BLE, y_BLE)
    return whole_BLE, torch.rms_norm(whole_BLE, weight_E.shape, weight_E, epsilon)


def norm_linear(
    x_1LE: Tensor, y_1LE: Tensor, norm_E: Tensor, epsilon: float | None, weight_NE: Tensor, bias_N: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x + y of one to MOST_TOKENS tokens of a row, and a linear map [1, L, N] of its RMS norm."""
    if x_1LE.is_cuda and x_1LE.shape[1] <= MOST_TOKENS:
        from specbench.engine.cuda import triton as triton_kernels

        return triton_kernels.norm_linear(x_1LE, y_1LE, norm_E, epsilon, weight_NE, bias_N)
    whole_1LE, normed_1LE = (torch_add_norm if x_1LE.is_cuda else add_norm)(x_1LE, y_1LE, norm_E, epsilon)
    return whole_1LE, functional.linear(normed_1LE, weight_NE, bias_N)


def gated(activation: str, x_BLE: Tensor, gate_BLE: Tensor) -> Tensor:
    """activation(x) times the gate."""
    if x_BLE.is_cuda:
        from specbench.engine.cuda import triton as triton_kernels

        return triton_kernels.gated(activation, x_BLE, gate_BLE)
    return ACTIVATIONS[activation](x_BLE) * gate_BLE


def write_attend(
    query_1H1D: Tensor,
    key_buffer_1KCD: Tensor,
    value_buffer_1KCD: Tensor,
    at_1: Tensor,
    keys_1K1D: Tensor,
    values_1K1D: Tensor,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """The keys and values of one token written into their buffers, and its attention to all slots."""
    if query_1H1D.is_cuda:
        from specbench.engine.cuda import triton as triton_kernels

        return triton_kernels.write_attend(
            query_1H1D, key_buffer_1KCD, value_buffer_1KCD, at_1, keys_1K1D, values_1K1D, bias, scale
        )
    kernels.write_pair(key_buffer_1KCD, value_buffer_1KCD, at_1, keys_1K1D, values_1K1D)
    return kernels.attend(query_1H1D, key_buffer_1KCD, value_buffer_1KCD, bias, scale)


def attend_one(query_1H1D: Tensor, key_1KCD: Tensor, value_1KCD: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The attention of one token to slots that hold all that it sees."""
    if query_1H1D.is_cuda:
        from specbench.engine.cuda import triton as triton_kernels

        return triton_kernels.attend_one(query_1H1D, key_1KCD, value_1KCD, bias, scale)
    return kernels.attend(query_1H1D, key_1KCD, value_1KCD, bias, scale)


def rotated(x_1HLD: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: x cos + (-x's second half, x's first half) sin."""
    if x_1HLD.is_cuda:
        from specbench.engine.cuda import triton as triton_kernels

        return triton_kernels.rotated(x_1HLD, cosine, sine)
    first, second = x_1HLD.chunk(2, -1)
    return x_1HLD * cosine + torch.cat([-second, first], -1) * sine


ALL = frozenset({"add_norm", "norm_linear", "gated", "write_pair", "write_attend", "attend_one", "rotated"})


def available(device: torch.device) -> bool:
    """Whether all fused kernels run on `device` and agree with torch there."""
    return agreeing(device) == ALL


@lru_cache
def agreeing(device: torch.device) -> frozenset[str]:
    """The fused kernels that run on `device` and agree with torch there, by name."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return frozenset()
    return frozenset(name for name in ALL if _agrees(name, device))


def _agrees(name: str, device: torch.device) -> bool:
    try:
        with torch.inference_mode():
            return all(
                torch.allclose(ours, theirs, rtol=close, atol=close)
                for dtype, close in ((torch.bfloat16, 0.02), (torch.float32, 1e-5))
                for ours, theirs in compared(name, device, dtype)
            )
    except Exception:  # no Triton, no C compiler for it, a GPU that it does not know
        return False


def compared(name: str, device: torch.device, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Tensors of a fused kernel, each with the result of torch's operations on the same random numbers."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    x, y, weight = random(1, 3, 96), random(1, 3, 96), random(96)
    if name == "add_norm":
        return list(zip(add_norm(x, y, weight, 1e-6), torch_add_norm(x, y, weight, 1e-6), strict=True))
    if name == "norm_linear":
        matrix, bias = random(80, 96) / 10, random(80)
        pairs = []
        for tokens in (1, 3):
            whole, normed = torch_add_norm(x[:, :tokens], y[:, :tokens], weight, 1e-6)
            both = norm_linear(x[:, :tokens], y[:, :tokens], weight, 1e-6, matrix, bias)
            pairs += [(both[0], whole), (both[1], functional.linear(normed, matrix, bias))]
        return pairs
    left, right = random(1, 3, 192).split([96, 96], -1)
    if name == "gated":
        return [(gated(kind, left, right), ACTIVATIONS[kind](left) * right) for kind in ACTIVATIONS]
    if name == "rotated":
        heads, angles = left.view(1, 3, 2, 48).transpose(1, 2), random(1, 1, 3, 48)
        cosine, sine, turned = angles.cos(), angles.sin(), torch.cat([-heads[..., 24:], heads[..., :24]], -1)
        return [(rotated(heads, cosine, sine), heads * cosine + turned * sine)]
    keys, values = (states.view(1, 3, 2, 48).transpose(1, 2) for states in (left, right.contiguous()))
    ours = [buffer.clone() for buffer in random(2, 1, 2, 70, 48)]
    theirs = [buffer.clone() for buffer in ours]
    at = torch.tensor([1, 5, 2], device=device)
    if name == "write_pair":
        kernels.write_pair(ours[0], ours[1], at, keys, values)
        kernels.write(theirs[0], at, keys)
        kernels.write(theirs[1], at, values)
        return list(zip(ours, theirs, strict=True))
    query, bias, (cached, mixed) = random(1, 4, 1, 48), random(1, 4, 1, 70), ours
    bias[..., 60:] = -torch.inf
    if name == "attend_one":
        return [
            (attend_one(query, cached, mixed, one, 0.2), kernels.attend(query, cached, mixed, one, 0.2))
            for one in (bias, None)
        ]
    newest = keys[:, :, :1], values[:, :, :1]
    found = write_attend(query, cached, mixed, at[1:2], *newest, bias, 0.2)
    kernels.write(theirs[0], at[1:2], newest[0])
    kernels.write(theirs[1], at[1:2], newest[1])
    return [(found, kernels.attend(query, theirs[0], theirs[1], bias, 0.2)), *zip(ours, theirs, strict=True)]


def fuse(module: GraphModule, one_token: bool) -> GraphModule:
    """`module`, which is or is not for one token, with fused kernels if the device has them, in place.

    Its RMS norms and activations are one operation each.
    """
    device = getattr(value(inputs_of(module)[0]), "device", None)
    can = frozenset() if device is None else agreeing(device)
    if not can:
        return module
    finished(module)  # what nothing uses any more would seem to read a sum before its norm does
    for node in calls(module, aten.rms_norm.default) if "add_norm" in can else ():
        _fuse_norm(module, node)
    for node in calls(module, aten.mul.Tensor) if "gated" in can else ():
        _fuse_gate(node)
    for node in calls(module, aten.add.Tensor) if "rotated" in can else ():
        _fuse_rotation(node)
    for node in calls(module, aten.linear.default) if "norm_linear" in can else ():
        _fuse_linear(module, node)
    writes = calls(module, kernels.write) if "write_pair" in can else []
    for first, second in zip(writes[::2], writes[1::2], strict=False):
        _fuse_writes(module, first, second)
    if one_token:
        for node in [*calls(module, kernels.attend), *calls(module, kernels.attend_alone)]:
            _fuse_attention(module, node, can)
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
    """The writes of a layer's keys and of its values, of one row, if nothing reads the keys in between."""
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


def _fuse_attention(module: GraphModule, attention: Node, can: frozenset[str]) -> None:
    """The attention of one token, with the write of its keys and values if that comes before."""
    query, keys, values, bias, scale, *sinks = attention.args
    if sinks or attention.kwargs or value(query).shape[0] != 1:
        return
    assert isinstance(keys, Node)
    order = list(module.graph.nodes)
    place = order.index(attention)
    write = next((node for node in reversed(order[:place]) if node.target is kernels.write_pair and
                  node.args[:2] == (keys, values)), None)  # fmt: skip
    if write is not None and "write_attend" in can:
        between = order[order.index(write) + 1 : place]
        if not any(node in keys.users for node in between):
            replace_by_call(attention, write_attend, (query, keys, values, *write.args[2:], bias, scale))
            module.graph.erase_node(write)
            return
    if "attend_one" in can and all(node.target is not kernels.write for node in keys.users):
        replace_by_call(attention, attend_one, (query, keys, values, bias, scale))


def _fuse_rotation(total: Node) -> None:
    """x cos + cat(-x2, x1) sin, of one row."""
    straight: Any
    turned: Any
    straight, turned = total.args
    if not all(isinstance(one, Node) and one.target == aten.mul.Tensor for one in (straight, turned)) or total.kwargs:
        return
    (x, cosine), (halves, sine) = straight.args, turned.args
    if not isinstance(halves, Node) or halves.target != aten.cat.default or not isinstance(x, Node):
        return
    of_halves: Any = halves.args
    (parts, *axis), shape = of_halves, value(x).shape
    if axis not in ([-1], [len(shape) - 1]) or len(parts) != 2 or len(shape) != 4 or shape[0] != 1:
        return
    negative, first = parts
    if negative.target != aten.neg.default or shape[-1] % 2 or first.target != aten.slice.Tensor:
        return
    second, half, last = negative.args[0], shape[-1] // 2, len(shape) - 1
    if second.target != aten.slice.Tensor or first.args != (x, last, 0, half) or second.args[:3] != (x, last, half):
        return
    angles = [value(angle) for angle in (cosine, sine)]
    if not all(isinstance(angle, Tensor) and angle.dim() == 4 and angle.shape[0] == angle.shape[1] == 1
               and angle.shape[-1] == shape[-1] and angle.dtype == value(x).dtype for angle in angles):  # fmt: skip
        return
    replace_by_call(total, rotated, (x, cosine, sine))


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
