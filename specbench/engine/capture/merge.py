"""Linear maps of one and the same input, as queries, keys and values are, become one map with one weight tensor."""

import operator
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.nodes import (
    add_constant,
    aten,
    calls,
    constant,
    value,
)


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
