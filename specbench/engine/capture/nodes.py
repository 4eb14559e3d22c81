"""A captured graph: recorded from a function, and its nodes: what they stand for, and how they are replaced.

The function is run on stand-ins without data, so that a capture costs no arithmetic and no memory, whatever the model's
size. Sizes are left open.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.torch_private import LazyGraphModule, make_fx
from specbench.engine.operations import kernels

aten = torch.ops.aten


def copied(module: GraphModule) -> GraphModule:
    """`module` with a graph of its own, over the same weights."""
    return LazyGraphModule(module, copy.deepcopy(module.graph))


def inputs_of(module: GraphModule) -> list[Node]:
    """The nodes of the inputs of `module`, in order."""
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def output_of(module: GraphModule) -> Node:
    """The node of what `module` returns."""
    output: Node = module.graph.output_node()
    return output


def finished(module: GraphModule) -> GraphModule:
    """`module`, its unused nodes removed and its code generated anew, in place."""
    module.graph.eliminate_dead_code(is_impure_node=has_effect)
    module.recompile()
    return module


def compiled_to_python(module: GraphModule) -> Callable[..., Any]:
    """`module` as a Python function of its inputs, generated from its nodes."""
    LazyGraphModule.force_recompile(module)
    ready: Callable[..., Any] = module.forward
    return ready


def has_effect(node: Node) -> bool:
    """Whether `node` must run although nobody uses what it returns: an input, the output, or a write into a cache."""
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    schema = getattr(node.target, "_schema", None)
    return node.target in (kernels.write, kernels.write_pair) or (schema is not None and bool(schema.is_mutable))


def calls(module: GraphModule, *targets: Any) -> list[Node]:
    """The nodes of `module` that call one of `targets`."""
    return [node for node in module.graph.nodes if node.op == "call_function" and node.target in targets]


def value(node: Any) -> Any:
    """The tensor without data, or the size, that the node stood for in the capture."""
    return node.meta.get("val") if isinstance(node, Node) else None


def plain(size: int | torch.SymInt) -> int | str:
    """A size as a number, or, if it is open, as text, the same for sizes that a capture found to be equal."""
    if isinstance(size, int):
        return size
    return int(size.node.expr) if size.node.expr.is_number else str(size.node.expr)


def constant(module: GraphModule, node: Any) -> Tensor | None:
    """The weight that a node fetches."""
    if isinstance(node, Node) and node.op == "get_attr":
        found = getattr(module, str(node.target))
        return found if isinstance(found, Tensor) else None
    return None


def add_constant(module: GraphModule, tensor: Tensor) -> Node:
    """A node that fetches `tensor`, at the insertion point."""
    name = next(name for index in itertools.count() if not hasattr(module, name := f"constant_{index}"))
    module.register_buffer(name, tensor, persistent=False)
    node = module.graph.create_node("get_attr", name)
    node.meta["val"] = tensor
    return node


def replace(node: Node, other: Node) -> None:
    """Replace `node` by `other` in all its users, and erase it."""
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def replace_by_call(node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
    """Replace `node` in all its users by a call of `target`, which stands for the same value, and erase it."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, args, kwargs)
    made.meta = dict(node.meta)
    replace(node, made)


def replace_by_value(node: Node, plain: Any) -> None:
    """Replace `node` by a plain value in all its users, and erase it."""
    for user in list(node.users):
        user.args = torch.fx.node.map_arg(user.args, lambda n: plain if n is node else n)
        user.kwargs = torch.fx.node.map_arg(user.kwargs, lambda n: plain if n is node else n)


def example_sizes(taken: set[int], count: int) -> list[int]:
    """Sizes to capture with, each standing for any size; none is in `taken`, or two sizes would be taken for one."""
    free = (size for size in range(7, 10_000, 2) if size not in taken)
    return [next(free) for _ in range(count)]


def capture(function: Callable[..., Any], inputs: Sequence[Tensor]) -> GraphModule:
    """The operations of `function(*inputs)`, with sizes left open (but for sizes of 1)."""
    with torch.no_grad():
        trace = make_fx(function, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)
        graph: GraphModule = trace(*inputs)
    return LazyGraphModule(graph, graph.graph)
