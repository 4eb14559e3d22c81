"""Simplifying a captured graph: fewer operations that compute the same.

Everything here holds for any model: it looks at operations and shapes, never at names of modules.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.models.graph.merge import merge_linears
from specbench.models.graph.nodes import add_constant, aten, calls, constant, finished, replace, replace_by_value, value

NO_OPERATION = {aten.dropout.default, aten.contiguous.default, aten.detach.default, aten.alias.default,
                aten.lift_fresh_copy.default}  # fmt: skip
CASTS = {aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other}
VIEWS = (aten.view.default, aten.reshape.default)
SAME_SHAPE = {*VIEWS, aten.expand.default, aten.slice.Tensor}


def simplify(module: GraphModule) -> GraphModule:
    """`module`, simplified in place."""
    return with_merged_weights(without_repetition(module))


def without_repetition(module: GraphModule) -> GraphModule:
    """`module` with fewer operations over the weights as they are, in place."""
    for step in (_out_of_place, _one_node_per_size, _drop_no_operations, _share_equal_nodes):
        step(module)
    return finished(module)


def with_merged_weights(module: GraphModule) -> GraphModule:
    """`module` with its linear maps as few as possible, in place: of one input one map, over one tensor."""
    _product_as_linear(module)
    merge_linears(module)
    return finished(module)


def _out_of_place(module: GraphModule) -> None:
    """Replace operations that change a tensor in place by operations that return a new tensor.

    Equal nodes can then be shared. Writes into a cache are intended and remain.
    """
    place = {node: index for index, node in enumerate(module.graph.nodes)}
    for node in list(place):
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable or node.target == torch.ops.specbench.write.default:
            continue
        changed: Any = node.args[0]
        packet = getattr(aten, schema.name.removeprefix("aten::").removesuffix("_"), None)
        seen_before = [user for user in changed.users if place[user] < place[node]]
        if packet is None or changed.op == "placeholder" or any(map(_is_view, [changed, *seen_before])):
            raise NotImplementedError(f"a model that changes a part of a tensor in place ({node.target})")
        node.target = getattr(packet, schema.overload_name or "default")
        for user in list(changed.users):
            if place[user] > place[node]:
                user.replace_input_with(changed, node)


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(one.alias_info is not None for one in schema.returns)


def _one_node_per_size(module: GraphModule) -> None:
    """Each open size is read once, from an input if possible; a size that is known becomes a number."""
    first: dict[str, Node] = {}
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    with module.graph.inserting_after(inputs[-1]):
        for node in inputs:
            for axis, size in enumerate(value(node).shape):
                if isinstance(size, torch.SymInt) and not size.node.expr.is_number and str(size.node.expr) not in first:
                    first[str(size.node.expr)] = read = module.graph.call_function(aten.sym_size.int, (node, axis))
                    read.meta["val"] = size
    own = set(first.values())
    for node in list(module.graph.nodes):
        if node in own:
            continue
        size = value(node)
        if node.op != "call_function" or not isinstance(size, int | torch.SymInt):
            continue
        if isinstance(size, int):
            replace_by_value(node, size)
            continue
        expression = str(size.node.expr)
        if size.node.expr.is_number:
            replace_by_value(node, int(size.node.expr))
        elif expression in first:
            replace(node, first[expression])
        else:
            first[expression] = node


def _drop_no_operations(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
            continue
        source = node.args[0]
        before, after = value(source), value(node)
        if not isinstance(after, Tensor) or not isinstance(before, Tensor):
            continue
        settled = (
            (node.target in NO_OPERATION and not (node.target == aten.dropout.default and node.args[2]))
            or (node.target in CASTS and (before.dtype, before.device) == (after.dtype, after.device))
            or (node.target in SAME_SHAPE and list(map(str, before.shape)) == list(map(str, after.shape)))
            or (node.target == aten.clone.default and not before.dtype.is_floating_point)
        )
        if settled:
            for user in list(node.users):
                if user.target == aten.view.default:  # a tensor with another layout cannot always be viewed
                    user.target = aten.reshape.default
            replace(node, source)


def _product_as_linear(module: GraphModule) -> None:
    """b + x W with a fixed W, as GPT-2 writes it, becomes a linear map."""
    for node in calls(module, aten.addmm.default):
        bias, rows, weight_node = node.args[:3]
        weight = constant(module, weight_node)
        if weight is None or node.kwargs:
            continue
        with module.graph.inserting_before(node):
            linear = module.graph.call_function(aten.linear.default, (rows, add_constant(module, weight.t()), bias))
        linear.meta["val"] = value(node)
        replace(node, linear)


def _share_equal_nodes(module: GraphModule) -> None:
    """Of equal operations only the first remains. What reads or writes a cache is left alone."""
    seen: dict[Any, Node] = {}
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            key: Any = ("get_attr", id(getattr(module, str(node.target))))
        elif node.op == "call_function" and not _touches_cache(node):
            key = (node.target, _key(node.args), _key(node.kwargs))
        else:
            continue
        if key in seen:
            replace(node, seen[key])
        else:
            seen[key] = node


def _touches_cache(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is None or schema.is_mutable or "specbench" in str(node.target)


def _key(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return tuple(_key(item) for item in argument)
    if isinstance(argument, dict):
        return tuple((name, _key(item)) for name, item in sorted(argument.items()))
    return (type(argument), argument)
