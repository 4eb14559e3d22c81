"""The work of a captured step on a device: the number of kernel launches, and the bytes of weights read.

Counted in the graph, not measured: every operation that computes or moves data is a kernel, whatever a library makes of
it; a look-up in an embedding reads single rows and counts as nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.models.graph.nodes import constant

# Operations that only say how a tensor is seen, by the name of torch's function, operator or method.
SEEN_OTHERWISE = {
    "view", "reshape", "size", "sym_size", "getitem", "split_with_sizes", "transpose", "unsqueeze", "squeeze", "expand",
    "slice", "select", "permute", "t", "flatten", "unbind", "alias", "detach", "contiguous",
}  # fmt: skip
LOOK_UPS = {"embedding"}


@dataclass(frozen=True)
class Budget:
    """Of one step."""

    kernels: int
    weight_bytes: int

    def seconds(self, bytes_per_second: float, launch_s: float, more_bytes: float = 0.0) -> float:
        """The least time of a step in seconds, from a device's bandwidth and the time to start a kernel.

        The step reads `more_bytes` of caches.
        """
        return (self.weight_bytes + more_bytes) / bytes_per_second + self.kernels * launch_s


def budget(parts: Sequence[Callable[..., Any]]) -> Budget | None:
    """The budget of `parts`, which run one after another, such as those of a `program.Step`.

    None where a part is no longer a graph, as after torch.compile.
    """
    modules = [getattr(part, "__self__", None) for part in parts]
    graphs = [module for module in modules if isinstance(module, GraphModule)]
    if len(graphs) < len(modules):
        return None
    weights: dict[int, Tensor] = {}
    kernels = 0
    for graph in graphs:
        for node in graph.graph.nodes:
            kernels += _is_kernel(node)
            weight = constant(graph, node)
            if weight is not None and any(_name(user) not in LOOK_UPS for user in node.users):
                weights[id(weight)] = weight
    return Budget(kernels, sum(weight.nbytes for weight in weights.values()))


def _is_kernel(node: Node) -> bool:
    if node.op not in ("call_function", "call_method") or getattr(node.target, "__module__", None) == "_operator":
        return False  # arithmetic on sizes, an element of a tuple
    return _name(node) not in SEEN_OTHERWISE


def _name(node: Node) -> str:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return name.partition(".")[0]
