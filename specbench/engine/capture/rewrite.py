"""Simplifying a captured graph: fewer operations that compute the same, and copies for special cases.

Everything here holds for any model: it looks at operations and shapes, never at names of modules.
"""

import sys
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.merge import merge_linears
from specbench.engine.capture.nodes import (
    add_constant,
    aten,
    calls,
    constant,
    copied,
    finished,
    has_effect,
    inputs_of,
    output_of,
    plain,
    replace,
    replace_by_call,
    replace_by_value,
    value,
)

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
    inputs = inputs_of(module)
    with module.graph.inserting_after(inputs[-1]):
        for node in inputs:
            for axis, size in enumerate(value(node).shape):
                if isinstance(name := plain(size), str) and name not in first:
                    first[name] = read = module.graph.call_function(aten.sym_size.int, (node, axis))
                    read.meta["val"] = size
    own = set(first.values())
    for node in list(module.graph.nodes):
        if node in own:
            continue
        size = value(node)
        if node.op != "call_function" or not isinstance(size, int | torch.SymInt):
            continue
        known = plain(size)
        if isinstance(known, int):
            replace_by_value(node, known)
        elif known in first:
            replace(node, first[known])
        else:
            first[known] = node


def _drop_no_operations(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
            continue
        source = node.args[0]
        before, after = value(source), value(node)
        if not isinstance(after, Tensor) or not isinstance(before, Tensor):
            continue
        unneeded = (
            (node.target in NO_OPERATION and not (node.target == aten.dropout.default and node.args[2]))
            or (node.target in CASTS and (before.dtype, before.device) == (after.dtype, after.device))
            or (node.target in SAME_SHAPE and list(map(plain, before.shape)) == list(map(plain, after.shape)))
            or (node.target == aten.clone.default and not before.dtype.is_floating_point)
        )
        if unneeded:
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
            transposed = add_constant(module, weight.t())
        replace_by_call(node, aten.linear.default, (rows, transposed, bias))


def _share_equal_nodes(module: GraphModule) -> None:
    """Keep only the first of equal operations. Operations that read or write a cache are not changed."""
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


def for_outputs(module: GraphModule, which: int | slice, inputs: Collection[int]) -> GraphModule:
    """A copy that returns some of the outputs, and has the inputs numbered `inputs`.

    Writes into an input that it does not have are left out.
    """
    module = copied(module)
    output: Any = output_of(module)
    output.args = (output.args[0][which],)
    dropped = {node for index, node in enumerate(inputs_of(module)) if index not in inputs}
    for node in reversed(module.graph.nodes):
        if not node.users and (node in dropped or not has_effect(node) or dropped & set(node.all_input_nodes)):
            module.graph.erase_node(node)
    return finished(module)


LAST = ((1, -1), (1, -1, sys.maxsize))  # of a slice: the axis of tokens, and its last entry


def for_one_token(module: GraphModule) -> GraphModule:
    """A copy for one new token, if the first input is the new tokens [B, L]."""
    module = copied(module)
    tokens = inputs_of(module)[0]
    count = plain(value(tokens).shape[1])
    for node in list(module.graph.nodes):
        source: Any = node.args[0] if node.args else None
        if node.target == aten.sym_size.int and source is tokens and node.args[1] == 1:
            replace_by_value(node, 1)
        elif node.target == aten.transpose.int and set(node.args[1:]) == {1, 2}:
            _transpose_as_view(node, count)
        elif node.target == aten.slice.Tensor and node.args[1:] in LAST and plain(value(source).shape[1]) == count:
            replace(node, source)
    return finished(module)


def for_last_row(module: GraphModule) -> GraphModule:
    """A copy that computes only the last token's logits, if a linear map returns the output [B, L, V]."""
    module = copied(module)
    head = output_of(module).all_input_nodes[0]
    while head.target in (aten.select.int, *VIEWS):
        head = head.all_input_nodes[0]
    if head.target == aten.linear.default:
        rows = head.all_input_nodes[0]
        with module.graph.inserting_before(head):
            last = module.graph.call_function(aten.slice.Tensor, (rows, 1, -1, sys.maxsize))
        last.meta = dict(rows.meta)
        head.args = (last, *head.args[1:])
    return finished(module)


def for_caches(module: GraphModule) -> GraphModule:
    """A copy that reads a prompt into the caches, whose logits nobody needs: it returns the last values [B, L, W].

    So the last layer's attention and what follows it are left out. It returns the last token's logits if these values
    are no rows of their own, and everything if no linear map returns the output, as where states follow the logits.
    """
    made, tokens = copied(module), value(inputs_of(module)[0]).shape
    writes = calls(made, torch.ops.specbench.write.default)
    if not writes or output_of(made).args[0].target != aten.linear.default:  # type: ignore[union-attr]
        return for_last_row(module)
    rows: Any = writes[-1].args[2]
    while rows.target in (*VIEWS, aten.transpose.int) and value(rows).dim() > 3:
        rows = rows.args[0]
    if value(rows).dim() != 3 or list(map(plain, value(rows).shape[:2])) != list(map(plain, tokens)):
        return for_last_row(module)
    output_of(made).args = (rows,)
    return finished(made)


def without_head(module: GraphModule) -> tuple[GraphModule, Tensor, Tensor | None] | None:
    """A copy that returns what the head reads, with the head's weight and bias; None if the output is no linear map.

    Also None if the map has no plain rows in memory, or another dtype than what it reads.
    """
    module = copied(module)
    output = output_of(module)
    head = output.all_input_nodes[0]
    if head.target != aten.linear.default or output.args != (head,):
        return None
    rows, *given = head.args
    weight, bias = (constant(module, node) for node in (*given, None)[:2])
    if weight is None or not weight.is_contiguous() or weight.dtype != value(rows).dtype:
        return None
    if (bias is None) != (len(given) < 2 or given[1] is None):
        return None
    output.args = (rows,)
    return finished(module), weight, bias


def _transpose_as_view(node: Node, count: int | str) -> None:
    """Replace a swap of the axes of tokens (whose size was `count`) and heads, which moves no data with one token."""
    source = node.args[0]
    assert isinstance(source, Node)
    shape: Any = source.args[1] if source.target in VIEWS else None
    if shape is not None and len(shape) == 4 and shape[1] == 1:
        replace_by_call(node, aten.view.default, (source.args[0], [shape[0], shape[2], 1, shape[3]]))
    elif count in map(plain, value(source).shape[1:3]) and all(user.target in VIEWS for user in node.users):
        replace(node, source)
