"""Copies of a simplified graph for special cases: some of what it gives, one new token, the last token alone."""

import copy
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from specbench.engine.capture.nodes import aten, finished, has_effect, plain, replace, replace_by_value, value
from specbench.engine.capture.rewrite import VIEWS
from specbench.engine.capture.torch_private import LazyGraphModule


def for_outputs(module: GraphModule, which: int | slice, inputs: Collection[int]) -> GraphModule:
    """A copy that returns some of the outputs, and has the inputs numbered `inputs`.

    Writes into an input that it does not have are left out.
    """
    module = LazyGraphModule(module, copy.deepcopy(module.graph))
    output = next(node for node in module.graph.nodes if node.op == "output")
    output.args = (output.args[0][which],)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    dropped = {node for index, node in enumerate(placeholders) if index not in inputs}
    for node in reversed(module.graph.nodes):
        if not node.users and (node in dropped or not has_effect(node) or dropped & set(node.all_input_nodes)):
            module.graph.erase_node(node)
    return finished(module)


LAST = ((1, -1), (1, -1, sys.maxsize))  # of a slice: the axis of tokens, and its last entry


def for_one_token(module: GraphModule) -> GraphModule:
    """A copy for one new token, where the first input is the new tokens [B, L]."""
    module = LazyGraphModule(module, copy.deepcopy(module.graph))
    tokens = next(node for node in module.graph.nodes if node.op == "placeholder")
    count = plain(value(tokens).shape[1])
    for node in list(module.graph.nodes):
        source: Any = node.args[0] if node.args else None
        if node.target == aten.sym_size.int and source is tokens and node.args[1] == 1:
            replace_by_value(node, 1)
        elif node.target == aten.transpose.int and set(node.args[1:]) == {1, 2}:
            _transpose_as_view(module, node, count)
        elif node.target == aten.slice.Tensor and node.args[1:] in LAST and plain(value(source).shape[1]) == count:
            replace(node, source)
    return finished(module)


def for_last_row(module: GraphModule) -> GraphModule:
    """A copy that computes the last token's logits only, where the output [B, L, V] is that of a linear map."""
    module = LazyGraphModule(module, copy.deepcopy(module.graph))
    output = next(node for node in module.graph.nodes if node.op == "output")
    head = output.all_input_nodes[0]
    while head.target in (aten.select.int, *VIEWS):
        head = head.all_input_nodes[0]
    if head.target == aten.linear.default:
        rows = head.all_input_nodes[0]
        with module.graph.inserting_before(head):
            last = module.graph.call_function(aten.slice.Tensor, (rows, 1, -1, sys.maxsize))
        last.meta = dict(rows.meta)
        head.args = (last, *head.args[1:])
    return finished(module)


def _transpose_as_view(module: GraphModule, node: Node, count: int | str) -> None:
    """With one token, swapping the axes of tokens (whose size was `count`) and heads moves no data."""
    source = node.args[0]
    assert isinstance(source, Node)
    shape: Any = source.args[1] if source.target in VIEWS else None
    if shape is not None and len(shape) == 4 and shape[1] == 1:
        with module.graph.inserting_before(node):
            view = module.graph.call_function(aten.view.default, (source.args[0], [shape[0], shape[2], 1, shape[3]]))
        view.meta = dict(node.meta)
        replace(node, view)
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
    nodes = list(module.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
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
    for node in nodes:
        if node.op == "placeholder":
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
    output = next(node for node in nodes if node.op == "output")
    rest.output(torch.fx.node.map_arg(output.args[0], in_rest.__getitem__))
    for graph in (hoisted, rest):
        graph.eliminate_dead_code(is_impure_node=has_effect)
    return Hoisted(LazyGraphModule(module, hoisted), LazyGraphModule(module, rest), len(crossing))


def _is_size(node: Node) -> bool:
    return node.op == "call_function" and isinstance(value(node), int | torch.SymInt)
