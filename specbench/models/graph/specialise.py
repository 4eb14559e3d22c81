"""Copies of a simplified graph for special cases: some of what it gives, one new token, the last token alone."""

import copy
import sys
from collections.abc import Collection
from typing import Any

from torch.fx import GraphModule, Node

from specbench.models.graph.nodes import aten, finished, has_effect, replace, replace_by_value, value
from specbench.models.graph.rewrite import VIEWS
from specbench.models.graph.torch_private import LazyGraphModule


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


def for_one_token(module: GraphModule) -> GraphModule:
    """A copy for one new token, where the first input is the new tokens [B, L]."""
    module = LazyGraphModule(module, copy.deepcopy(module.graph))
    tokens = next(node for node in module.graph.nodes if node.op == "placeholder")
    count = str(value(tokens).shape[1])
    for node in list(module.graph.nodes):
        if node.target == aten.sym_size.int and node.args[0] is tokens and node.args[1] == 1:
            replace_by_value(node, 1)
        elif node.target == aten.transpose.int and set(node.args[1:]) == {1, 2}:
            _transpose_as_view(module, node, count)
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


def _transpose_as_view(module: GraphModule, node: Node, count: str) -> None:
    """With one token, swapping the axes of tokens (whose size was `count`) and heads moves no data."""
    source = node.args[0]
    assert isinstance(source, Node)
    shape: Any = source.args[1] if source.target in VIEWS else None
    if shape is not None and len(shape) == 4 and shape[1] == 1:
        with module.graph.inserting_before(node):
            view = module.graph.call_function(aten.view.default, (source.args[0], [shape[0], shape[2], 1, shape[3]]))
        view.meta = dict(node.meta)
        replace(node, view)
    elif count in map(str, value(source).shape[1:3]) and all(user.target in VIEWS for user in node.users):
        replace(node, source)
