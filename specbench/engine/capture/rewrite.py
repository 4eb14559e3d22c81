"""Simplifying a captured graph: fewer operations that compute the same, and copies for special cases.

Everything here holds for any model: it looks at operations and shapes, never at names of modules.
"""

import operator
import sys
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

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
from specbench.engine.capture.torch_private import LazyGraphModule

# Linear maps of one and the same input, as queries, keys and values are, become one map with one weight tensor.


def merge_linears(module: GraphModule) -> None:
    """Merge linear maps of the same input, such as queries, keys and values, into one.

    The model's weights become views of the merged tensor, so that they are in memory once.
    """
    groups: dict[Any, list[Node]] = defaultdict(list)
    for node in calls(module, aten.linear.default):
        weight = constant(module, node.args[1])
        bias = node.args[2] if len(node.args) > 2 else None
        if weight is not None and (bias is None or constant(module, bias) is not None):
            groups[node.args[0], weight.dtype, bias is None].append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _merge(module, nodes)


def _neighbours(parts: list[Tensor]) -> Tensor | None:
    """The tensor whose consecutive views `parts` are, if an earlier capture has merged them."""
    first, at = parts[0].detach(), parts[0].storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (same and part.storage_offset() == at and part.is_contiguous() and part.shape[1:] == first.shape[1:]):
            return None
        at += part.numel()
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def _merge(module: GraphModule, nodes: list[Node]) -> None:
    def joined(argument: int) -> Tensor:
        parts: list[Tensor] = [getattr(module, str(node.args[argument].target)) for node in nodes]  # type: ignore[union-attr]
        # Weights made in inference mode have no version counter. They become views of such a tensor, or the
        # network itself would no longer run.
        with torch.no_grad(), torch.inference_mode(parts[0].is_inference()):
            if (before := _neighbours(parts)) is not None:
                return before
            whole = torch.cat([part.detach() for part in parts])
            for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
                part.data = view
        return whole

    sizes = [len(getattr(module, str(node.args[1].target))) for node in nodes]  # type: ignore[union-attr]
    with module.graph.inserting_before(nodes[0]):
        arguments = [nodes[0].args[0], add_constant(module, joined(1))]
        if len(nodes[0].args) > 2:
            arguments.append(add_constant(module, joined(2)))
        merged = module.graph.call_function(aten.linear.default, tuple(arguments))
        merged.meta["val"] = torch.cat([value(node) for node in nodes], -1)
        parts = module.graph.call_function(aten.split_with_sizes.default, (merged, sizes, -1))
        for index, node in enumerate(nodes):
            part = module.graph.call_function(operator.getitem, (parts, index))
            part.meta["val"] = value(node)
            node.replace_all_uses_with(part)
    for node in nodes:
        module.graph.erase_node(node)


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
    """A copy for one new token, where the first input is the new tokens [B, L]."""
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
    """A copy that computes the last token's logits only, where the output [B, L, V] is that of a linear map."""
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


def _transpose_as_view(node: Node, count: int | str) -> None:
    """With one token, swapping the axes of tokens (whose size was `count`) and heads moves no data."""
    source = node.args[0]
    assert isinstance(source, Node)
    shape: Any = source.args[1] if source.target in VIEWS else None
    if shape is not None and len(shape) == 4 and shape[1] == 1:
        replace_by_call(node, aten.view.default, (source.args[0], [shape[0], shape[2], 1, shape[3]]))
    elif count in map(plain, value(source).shape[1:3]) and all(user.target in VIEWS for user in node.users):
        replace(node, source)


# Parts of a graph that do not depend on tokens or caches, split off into a graph of their own.
#
# Masks, relative position biases, rotary angles and learned positions depend on nothing but how many tokens have been
# read. In a graph of their own, they can be cached by that number instead of being computed in every step.


@dataclass(frozen=True)
class Hoisted:
    """A graph in two: `hoisted` maps the inputs to `count` tensors, `rest` maps the inputs and these to the outputs."""

    hoisted: GraphModule
    rest: GraphModule
    count: int


def hoist(module: GraphModule, inputs: Collection[int], with_constants: bool) -> Hoisted:
    """Split off everything whose values depend on no input tensor but those numbered `inputs`; sizes are no values.

    What depends on nothing but sizes and weights goes along only if `with_constants`.
    """
    nodes, placeholders = list(module.graph.nodes), inputs_of(module)
    dependent: set[Node] = {placeholders[index] for index in inputs}
    constant: set[Node] = set()
    for node in nodes:
        if node.op == "get_attr" or _is_size(node):
            constant.add(node)
        elif node.op == "call_function" and not has_effect(node) and getattr(node.target, "_schema", None) is not None:
            before = set(node.all_input_nodes)
            if before <= constant:
                constant.add(node)
            elif before <= constant | dependent:
                dependent.add(node)
    if with_constants:
        dependent |= {node for node in constant if node.op == "call_function" and not _is_size(node)}
    movable = dependent | constant
    crossing = [
        node
        for node in nodes
        if node in dependent and node.op == "call_function" and any(user not in movable for user in node.users)
    ]
    hoisted, rest = Graph(), Graph()
    in_hoisted: dict[Node, Node] = {}
    in_rest: dict[Node, Node] = {}
    for node in placeholders:
        in_hoisted[node] = hoisted.node_copy(node)
        in_rest[node] = rest.node_copy(node)
    for node in crossing:
        in_rest[node] = rest.placeholder(f"hoisted_{node.name}")
        in_rest[node].meta = dict(node.meta)
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node in movable:
            in_hoisted[node] = hoisted.node_copy(node, in_hoisted.__getitem__)
        if node not in in_rest and node not in dependent:
            in_rest[node] = rest.node_copy(node, in_rest.__getitem__)
    hoisted.output(tuple(in_hoisted[node] for node in crossing))
    rest.output(torch.fx.node.map_arg(output_of(module).args[0], in_rest.__getitem__))
    for graph in (hoisted, rest):
        graph.eliminate_dead_code(is_impure_node=has_effect)
    return Hoisted(LazyGraphModule(module, hoisted), LazyGraphModule(module, rest), len(crossing))


def _is_size(node: Node) -> bool:
    return node.op == "call_function" and isinstance(value(node), int | torch.SymInt)
