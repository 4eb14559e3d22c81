"""Choosing kernels: the named operations and linear maps of a simplified graph become calls of what is fastest here."""

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.models.graph import kernels
from specbench.models.graph.rewrite import add_constant, aten, calls, constant, finished, replace, value

# In fp32 oneDNN's own layout pays from here: for one token, and for several.
LARGE_FP32 = {True: 2**20, False: 2**18}


class Layouts:
    """Weights as oneDNN lays them out, each made once, however many graphs use it."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # an id is only good while its tensor lives

    def packed(self, weight: Tensor) -> Tensor:
        if id(weight) not in self._made:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 1)
            self._made[id(weight)] = weight, packed
        return self._made[id(weight)][1]


def lower(module: GraphModule, layouts: Layouts, one_token: bool) -> GraphModule:
    """`module` with kernels chosen, in place, ready to run."""
    for node in calls(module, torch.ops.specbench.write.default):
        node.target = kernels.write
    for node in calls(module, torch.ops.specbench.attend.default):
        node.target = kernels.attend
    weights = [value(node) for node in module.graph.nodes if node.op == "get_attr"]
    if all(weight.device.type == "cpu" for weight in weights):
        for node in calls(module, aten.rsqrt.default):
            _lean_norm(module, node)
        if torch.backends.mkldnn.is_available():
            for node in calls(module, aten.linear.default):
                _lean_linear(module, node, layouts, one_token)
    return finished(module)


def _lean_norm(module: GraphModule, node: Node) -> None:
    """rsqrt(mean(x^2) + epsilon) in three operations instead of five."""
    plus = node.args[0]
    if not (isinstance(plus, Node) and plus.target == aten.add.Tensor and isinstance(plus.args[1], float)):
        return
    mean = plus.args[0]
    if not (isinstance(mean, Node) and mean.target == aten.mean.dim and mean.args[1:] == ([-1], True)):
        return
    power = mean.args[0]
    if not (isinstance(power, Node) and power.target == aten.pow.Tensor_Scalar and power.args[1] == 2):
        return
    wide = power.args[0]
    if not (isinstance(wide, Node) and value(wide).dtype == torch.float32 and value(wide).dim() == 3):
        return
    with module.graph.inserting_before(node):
        epsilon = add_constant(module, torch.tensor(plus.args[1]))
        lean = module.graph.call_function(kernels.inverse_rms, (wide, epsilon, 1 / int(value(wide).shape[-1])))
    # What the model scales is x before it was widened: the same numbers, and mixed types cost time.
    narrow = wide.args[0] if wide.target == aten.to.dtype else None
    for user in list(node.users):
        if user.target == aten.mul.Tensor and narrow in user.args:
            user.args = tuple(wide if argument is narrow else argument for argument in user.args)
    replace(node, lean)


def _lean_linear(module: GraphModule, node: Node, layouts: Layouts, one_token: bool) -> None:
    weight = constant(module, node.args[1])
    bias = node.args[2] if len(node.args) > 2 else None
    if weight is None or value(node.args[0]).dtype != weight.dtype:
        return
    bf16 = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not bf16 and not (weight.dtype == torch.float32 and weight.numel() >= LARGE_FP32[one_token]):
        return
    with module.graph.inserting_before(node):
        packed = add_constant(module, layouts.packed(weight))
        lean = module.graph.call_function(kernels.packed_linear, (node.args[0], packed, bias))
    lean.meta = dict(node.meta)
    replace(node, lean)
