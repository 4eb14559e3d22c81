"""A captured graph as plain JSON, and back, so that a capture can be cached on disk.

A file stores operations by name, their arguments, and the shapes and dtypes of their results; weights are names of the
network's own tensors. Nothing that is read is executed or unpickled: an operation is looked up in torch and in this
package, and a size is arithmetic on open sizes.
"""

import ast
import base64
import json
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from specbench.engine.capture.torch_private import LazyGraphModule, open_sizes

NAMESPACES = ("aten", "prims", "specbench")
MODULES: dict[str, object] = {"_operator": operator, "math": math, "torch": torch}  # whose functions compute on sizes
CALLING = ("attrgetter", "call", "itemgetter", "methodcaller")  # of operator: these run what they are given
MOST_CONSTANTS = 2**14  # numbers of a tensor that is no weight
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class NotStorable(ValueError):
    """Raised if a graph holds a value that cannot be written to a file."""


def stored(module: GraphModule, weights: Mapping[str, Tensor]) -> dict[str, object]:
    """`module` as plain values. Raises NotStorable."""
    names = {id(tensor): name for name, tensor in weights.items()}
    open_: dict[str, int] = {}
    nodes = []
    for node in module.graph.nodes:
        if node.op == "get_attr":
            tensor = getattr(module, str(node.target))
            source = {"weight": names[id(tensor)]} if id(tensor) in names else _stored_tensor(tensor)
            nodes.append({"op": "get_attr", "name": node.name, "source": source})
            continue
        if node.op not in ("placeholder", "call_function", "output"):
            raise NotStorable(node.op)
        nodes.append(
            {
                "op": node.op,
                "name": node.name,
                "target": _name_of(node.target) if node.op == "call_function" else str(node.target),
                "args": [_stored(argument) for argument in node.args],
                "kwargs": {name: _stored(argument) for name, argument in node.kwargs.items()},
                "value": _stored_value(node.meta.get("val"), open_),
            }
        )
    return {"open": open_, "nodes": nodes}


def restored(document: Mapping[str, Any], weights: Mapping[str, Tensor], device: torch.device) -> GraphModule:
    """The graph that `stored` made `document` of, over `weights`. Raises whatever a damaged document leads to."""
    graph, root, made = Graph(), torch.nn.Module(), dict[str, Node]()
    sizes, without_data = open_sizes(document["open"])
    values: dict[str, object] = {}  # a tensor without data stands for all of its size and dtype
    for index, entry in enumerate(document["nodes"]):
        op, name = entry["op"], entry["name"]
        if op == "get_attr":
            source = entry["source"]
            tensor = weights[source["weight"]] if "weight" in source else _restored_tensor(source, device)
            target = f"constant_{index}"
            root.register_buffer(target, tensor, persistent=False)
            node = graph.create_node("get_attr", target, name=name)
            node.meta["val"] = tensor
        else:
            target = _function(entry["target"]) if op == "call_function" else entry["target"]
            args = tuple(_restored(argument, made) for argument in entry["args"])
            kwargs = {key: _restored(argument, made) for key, argument in entry["kwargs"].items()}
            node = graph.create_node(op, target, args, kwargs, name=name)
            if (found := entry["value"]) is not None:
                if (text := json.dumps(found)) not in values:
                    values[text] = _restored_value(found, sizes, without_data, device)
                node.meta["val"] = values[text]
        made[name] = node
    graph.lint()
    return LazyGraphModule(root, graph)


def _name_of(target: Any) -> list[str]:
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        if namespace in NAMESPACES:
            return ["torch.ops", namespace, name, target._overloadname]
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", "")
    if module in MODULES and _is_of_sizes(module, name) and getattr(MODULES[module], name, None) is target:
        return [module, name]
    raise NotStorable(str(target))


def _function(names: list[str]) -> Any:
    first, *rest = names
    if first == "torch.ops":
        namespace, name, overload = rest
        if namespace not in NAMESPACES:
            raise ValueError(namespace)
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)
    (name,) = rest
    if not _is_of_sizes(first, name):
        raise ValueError(name)
    return getattr(MODULES[first], name)


def _is_of_sizes(module: str, name: str) -> bool:
    """Whether a function computes on sizes: not, say, torch.load, which would unpickle a file that is named."""
    return name.removeprefix("_").startswith("sym_") if module == "torch" else name not in CALLING


def _stored(argument: Any) -> Any:
    match argument:
        case None | bool() | int() | str():
            return argument
        case float():
            return argument if math.isfinite(argument) else {"float": str(argument)}
        case Node():
            return {"node": argument.name}
        case tuple():
            return {"tuple": [_stored(item) for item in argument]}
        case list():
            return [_stored(item) for item in argument]
        case slice():
            return {"slice": [_stored(part) for part in (argument.start, argument.stop, argument.step)]}
        case torch.device():
            return {"device": str(argument)}
        case torch.dtype() | torch.layout() | torch.memory_format():
            return {"torch": str(argument).removeprefix("torch.")}
    raise NotStorable(f"{type(argument)} as an argument")


def _restored(argument: Any, made: Mapping[str, Node]) -> Any:
    if isinstance(argument, list):
        return [_restored(item, made) for item in argument]
    if not isinstance(argument, dict):
        return argument
    ((kind, content),) = argument.items()
    match kind:
        case "float":
            return float(content)
        case "node":
            return made[content]
        case "tuple":
            return tuple(_restored(item, made) for item in content)
        case "slice":
            return slice(*(_restored(part, made) for part in content))
        case "device":
            return torch.device(content)
        case "torch":
            found = getattr(torch, content)
            if isinstance(found, torch.dtype | torch.layout | torch.memory_format):
                return found
    raise ValueError(kind)


def _stored_value(found: Any, open_: dict[str, int]) -> Any:
    """Shape and dtype of a tensor, or a size; None for anything else."""
    if isinstance(found, Tensor):
        shape = [_stored_size(size, open_) for size in found.shape]
        return {"shape": shape, "dtype": str(found.dtype).removeprefix("torch.")}
    if isinstance(found, torch.SymInt | int) and not isinstance(found, bool):
        return {"size": _stored_size(found, open_)}
    return None


def _stored_size(size: Any, open_: dict[str, int]) -> Any:
    if isinstance(size, int):
        return size
    text = str(size.node.expr)
    if text.isidentifier():
        open_[text] = int(size.node.hint)
    _size(ast.parse(text, mode="eval").body, open_)  # raises what cannot be read again
    return text


def _restored_value(
    entry: Any, sizes: Mapping[str, Any], without_data: Callable[..., Tensor], device: torch.device
) -> Any:
    if "size" in entry:
        return _restored_size(entry["size"], sizes)
    shape = [_restored_size(size, sizes) for size in entry["shape"]]
    return without_data(shape, dtype=_restored({"torch": entry["dtype"]}, {}), device=device)


def _restored_size(size: Any, sizes: Mapping[str, Any]) -> Any:
    return size if isinstance(size, int) else _size(ast.parse(size, mode="eval").body, sizes)


def _size(expression: ast.expr, sizes: Mapping[str, Any]) -> Any:
    match expression:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            if name in sizes:
                return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_size(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return ARITHMETIC[type(op)](_size(left, sizes), _size(right, sizes))
    raise NotStorable(ast.dump(expression))


def _stored_tensor(tensor: Any) -> dict[str, object]:
    """A tensor that the network's code made while it ran, with its numbers."""
    if type(tensor) is not Tensor or tensor.numel() > MOST_CONSTANTS:
        raise NotStorable("a large tensor that is no weight")
    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return {
        "numbers": base64.b64encode(raw).decode(),
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "on_cpu": tensor.device.type == "cpu",
    }


def _restored_tensor(source: Mapping[str, Any], device: torch.device) -> Tensor:
    raw = torch.frombuffer(bytearray(base64.b64decode(source["numbers"])), dtype=torch.uint8)
    tensor = raw.view(_restored({"torch": source["dtype"]}, {})).view(source["shape"])
    return tensor if source["on_cpu"] else tensor.to(device)
