"""Parts of a graph that do not depend on tokens or caches, split off into a graph of their own.

Masks, relative position biases, rotary angles and learned positions depend on nothing but how many tokens have been
read. In a graph of their own, they can be cached by that number instead of being computed in every step.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from specbench.engine.capture.nodes import (
    has_effect,
    inputs_of,
    output_of,
    value,
)
from specbench.engine.capture.torch_private import LazyGraphModule


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
