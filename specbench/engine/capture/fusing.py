"""Chains of operations of a simplified graph become calls of the kernels of `fused`, where the device has them."""

import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.nodes import aten, calls, constant, finished, inputs_of, replace, replace_by_call, value
from specbench.engine.operations import fused, kernels, usable_fused

SMALL_MAP = 2**22  # weights of a linear map that takes less time than two launches
WIDEST = 2**14  # channels of a row that one block of a kernel holds
VIEWS = (aten.view.default, aten.reshape.default)
LONGEST_SUM = 2**13  # channels of a row that `linear_rows` adds up in parts


def fuse(module: GraphModule, one_token: bool) -> GraphModule:
    """`module`, which is or is not for one token, with fused kernels where the device has them, in place.

    Its RMS norms and activations are one operation each.
    """
    device = getattr(value(inputs_of(module)[0]), "device", None)
    can = frozenset() if device is None else usable_fused.agreeing(device)
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
    for node in calls(module, aten.linear.default):
        _of_tokens(node)
    finished(module)
    for node in calls(module, aten.linear.default) if "linear_rows" in can else ():
        _fuse_rows(module, node)
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
        both = module.graph.call_function(fused.add_norm, (*whole.args, weight, epsilon))
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
    if not isinstance(both, Node) or both.target is not fused.add_norm or matrix is None or matrix.numel() > SMALL_MAP:
        return
    if value(item).shape[0] != 1 or matrix.dtype != value(item).dtype or not matrix.is_contiguous():
        return
    place = {node: index for index, node in enumerate(module.graph.nodes)}
    whole = next((user for user in both.users if user.args[1] == 0), None)
    if whole is not None and any(place[user] < place[linear] for user in whole.users):
        return
    last, activation = _activated(linear)
    with module.graph.inserting_before(linear):
        one = module.graph.call_function(fused.norm_linear, (*both.args, weight, bias[0] if bias else None, activation))
        parts = [module.graph.call_function(operator.getitem, (one, index)) for index in range(2)]
    parts[1].meta = dict(last.meta)
    replace(last, parts[1])
    if last is not linear:
        module.graph.erase_node(linear)
    module.graph.erase_node(item)
    if whole is not None:
        parts[0].meta = dict(whole.meta)
        replace(whole, parts[0])
    module.graph.erase_node(both)


def _activated(linear: Node) -> tuple[Node, str | None]:
    """The activation that is the only reader of `linear`, and its name; otherwise `linear` itself."""
    user = next(iter(linear.users)) if len(linear.users) == 1 else None
    name = _activation(user)
    return (linear, None) if user is None or name is None else (user, name)


def _of_tokens(linear: Node) -> None:
    """A linear map of rows [L, E] that are a view of tokens [1, L, E], and viewed so again, as one of the tokens."""
    rows, view = linear.args[0], next(iter(linear.users)) if len(linear.users) == 1 else None
    if not isinstance(rows, Node) or rows.target not in VIEWS or view is None or view.target not in VIEWS:
        return
    tokens = rows.args[0]
    shapes = [list(map(str, value(node).shape)) for node in (tokens, rows, view)]
    if len(shapes[0]) != 3 or len(shapes[1]) != 2 or shapes[0][-1] != shapes[1][-1] or shapes[2][:-1] != shapes[0][:-1]:
        return
    if shapes[2][-1] == str(value(linear).shape[-1]):
        replace_by_call(view, aten.linear.default, (tokens, *linear.args[1:]))


def _fuse_rows(module: GraphModule, linear: Node) -> None:
    """A linear map of one row's tokens, with few weights, its activation, and the sum that reads that.

    Without either it is fused if it has more channels than outputs: few programs would read long rows.
    """
    x, weight, *bias = linear.args
    tensor, matrix, shift = value(x), constant(module, weight), constant(module, bias[0] if bias else None)
    if matrix is None or matrix.numel() > SMALL_MAP or matrix.shape[1] > LONGEST_SUM or tensor.dim() != 3:
        return
    if tensor.shape[0] != 1 or matrix.dtype != tensor.dtype or bool(bias) != (shift is not None):
        return
    last, activation = _activated(linear)
    total = next(iter(last.users)) if len(last.users) == 1 else None
    residual = None if total is None else _added_to(total, last)
    if residual is None and activation is None and matrix.shape[1] <= matrix.shape[0]:
        return
    end = last if residual is None or total is None else total
    replace_by_call(end, fused.linear_rows, (x, weight, bias[0] if bias else None, activation, residual))


def _added_to(total: Node, part: Node) -> Node | None:
    """The other part of a sum of two tensors of one shape."""
    if total.target != aten.add.Tensor or total.kwargs or len(total.args) != 2:
        return None
    other = total.args[1] if total.args[0] is part else total.args[0]
    if not isinstance(other, Node) or other is part or not isinstance(value(other), Tensor):
        return None
    described = [(one.dtype, *map(str, one.shape)) for one in (value(other), value(part), value(total))]
    return other if described[0] == described[1] == described[2] else None


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


def _fuse_attention(module: GraphModule, attention: Node, can: frozenset[str]) -> None:
    """The attention of one token, with the write of its keys and values where that comes before."""
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
            replace_by_call(attention, fused.write_attend, (query, keys, values, *write.args[2:], bias, scale))
            module.graph.erase_node(write)
            return
    if "attend_one" in can and all(node.target is not kernels.write for node in keys.users):
        replace_by_call(attention, fused.attend_one, (query, keys, values, bias, scale))


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
    replace_by_call(total, fused.rotated, (x, cosine, sine))


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
            replace_by_call(product, fused.gated, (name, x, gate))
            return


def _activation(node: Any) -> str | None:
    target = node.target if isinstance(node, Node) else None
    if target in (aten.relu.default, aten.silu.default):
        return "relu" if target == aten.relu.default else "silu"
    if target == aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"
    return None


def used(runs: Iterable[Callable[..., Any]]) -> frozenset[str]:
    """The names of the fused kernels that parts of steps call; of a part that is no graph none."""
    names = {getattr(fused, name, getattr(kernels, name, None)): name for name in usable_fused.ALL}
    modules = [module for run in runs if isinstance(module := getattr(run, "__self__", None), GraphModule)]
    return frozenset(names[node.target] for module in modules for node in calls(module, *names))
