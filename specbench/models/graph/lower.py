"""Choosing kernels: the named operations and linear maps of a simplified graph become calls of what is fastest here."""

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.models.graph import kernels
from specbench.models.graph.rewrite import add_constant, aten, calls, constant, finished, replace, value

# Weights up to this many numbers are multiplied faster in fp32 than oneDNN is called in bf16 (one token: 5 us against
# 12 us at 256 x 256).
SMALL = 2**16
# In fp32 oneDNN's own layout pays from here: for one token, and for several.
LARGE_FP32 = {True: 2**20, False: 2**18}


class Layouts:
    """Weights in the layouts that kernels want, each made once, however many graphs use it."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, str], Tensor] = {}
        self._kept: list[Tensor] = []  # ids are only good while their tensors live

    def packed(self, weight: Tensor) -> Tensor:
        return self._get(weight, "packed", lambda w: torch.ops.mkldnn._reorder_linear_weight(w, 1))

    def widened(self, weight: Tensor) -> Tensor:
        return self._get(weight, "widened", lambda w: w.float().t().contiguous())

    def _get(self, weight: Tensor, kind: str, make: object) -> Tensor:
        key = (id(weight), kind)
        if key not in self._made:
            self._kept.append(weight)
            self._made[key] = make(weight.detach().contiguous())  # type: ignore[operator]
        return self._made[key]


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
    if weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        small = one_token and weight.numel() <= SMALL
        if small and bias is not None and value(bias) is not None:
            small = False
        kernel, layout = (kernels.widened_linear, layouts.widened) if small else (kernels.packed_linear, layouts.packed)
    elif weight.dtype == torch.float32 and weight.numel() >= LARGE_FP32[one_token]:
        kernel, layout = kernels.packed_linear, layouts.packed
    else:
        return
    with module.graph.inserting_before(node):
        lean = module.graph.call_function(kernel, (node.args[0], add_constant(module, layout(weight)), bias))
    lean.meta = dict(node.meta)
    replace(node, lean)
