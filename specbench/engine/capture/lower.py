"""Kernels for a simplified graph: its named operations and linear maps become the fastest calls on this device."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine import paged
from specbench.engine.capture.expert_layers import ExpertLayer, ExpertMap, RoutedExperts
from specbench.engine.capture.fusing import fuse
from specbench.engine.capture.nodes import (
    add_constant,
    aten,
    calls,
    compiled_to_python,
    constant,
    finished,
    replace,
    replace_by_call,
    value,
)
from specbench.engine.capture.torch_private import computes_bf16, lay_out, packed_linear
from specbench.engine.experts import ExpertReads
from specbench.engine.operations import kernels
from specbench.kernels import large_pages
from specbench.kernels.found_levels import AS_FOUND, bits_found


@dataclass(frozen=True)
class Kernels:
    """The kernels for attention and for linear maps.

    `large_fp32` is how many weights an fp32 map must have for oneDNN's own layout: in a step over one token, and over
    several.
    """

    attend: Callable[..., Tensor] = kernels.attend
    attend_alone: Callable[..., Tensor] = kernels.attend_alone
    linear: Callable[..., Tensor] = packed_linear
    large_fp32: tuple[int, int] = (2**20, 2**18)  # from here it pays


FAST = Kernels()


class PackedWeights:
    """Weights in a kernel's layout, each made once, however many graphs use it.

    `level_bits`: weights of linear maps are rounded to so many bits (`kernels.levels`), in which the native kernels
    read them; 0: no rounding; AS_FOUND: weights that already are levels are read as such (`kernels.found_levels`).
    """

    def __init__(self, level_bits: int = 0) -> None:
        self.level_bits = level_bits
        self._bits: dict[Any, int] = {}
        self._made: dict[Any, tuple[Tensor, Tensor]] = {}  # an address is valid only while its tensor lives
        self.reads = ExpertReads()  # of the experts among them

    def bits_of(self, weight: Tensor) -> int:
        """The bits of the levels in which a kernel reads `weight`; 0 if it reads numbers."""
        if self.level_bits != AS_FOUND:
            return self.level_bits
        place = weight.data_ptr(), *weight.shape
        if place not in self._bits:
            self._bits[place] = bits_found(weight)
        return self._bits[place]

    def of(self, weight: Tensor, layout: Callable[[Tensor], Tensor] = lay_out) -> Tensor:
        """`weight` in oneDNN's layout, or in another."""
        address = _address(weight, layout)
        if address not in self._made:
            self._made[address] = weight, layout(weight)
            paged.release(weight)
        return self._made[address][1]

    def has(self, weight: Tensor, layout: Callable[[Tensor], Tensor]) -> bool:
        """Whether `weight` has been laid out so, for another graph."""
        return _address(weight, layout) in self._made

    def pairs(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Each weight, and the same in a kernel's layout."""
        return self._made.values()

    def refresh(self) -> None:
        """Lay out again, in place, the weights as they are now."""
        for (layout, *_), (weight, laid_out) in self._made.items():
            with torch.inference_mode(laid_out.is_inference()), torch.no_grad(), large_pages.avoided():
                laid_out.copy_(layout(weight))


def _address(weight: Tensor, layout: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    return layout, weight.data_ptr(), *weight.shape, *weight.stride()


def widened(weight: Tensor) -> Tensor:
    """A vector of weights in fp32."""
    return weight.detach().float().contiguous()


def one_more(weight: Tensor) -> Tensor:
    """1 + a vector of weights, in fp32."""
    return 1.0 + weight.detach().float()


def with_folded_weights(module: GraphModule, packed: PackedWeights) -> GraphModule:
    """`module`, changed in place: values that depend only on weights (numbers, norms' vectors) become weights.

    Gemma's norms multiply by 1 + w and Cohere's by w, both in fp32; Gemma scales its embeddings by a tensor.
    """
    for node in calls(module, aten.mul.Tensor):
        by = constant(module, node.args[1])
        if by is not None and by.dim() == 0:
            node.args = (node.args[0], float(by))
    for node in calls(module, aten.type_as.default):
        node.target, node.args = aten.to.dtype, (node.args[0], value(node).dtype)
        source = node.args[0]
        if value(source).dtype == value(node).dtype:
            replace(node, cast(Node, source))
    for node in calls(module, aten.to.dtype):
        _fold(module, node, widened, packed)
    for node in calls(module, aten.add.Tensor):
        if node.args[1] == 1.0:
            _fold(module, node, one_more, packed)
    return finished(module)


def _fold(module: GraphModule, node: Node, computed: Callable[[Tensor], Tensor], packed: PackedWeights) -> None:
    """Make `node` a weight if it is a vector in fp32, `computed` from only a weight."""
    weight = constant(module, node.args[0])
    if weight is None or weight.dim() != 1 or value(node).dtype != torch.float32:
        return
    with module.graph.inserting_before(node):
        folded = add_constant(module, packed.of(weight, computed))
    replace(node, folded)


# What makes a simplified graph ready to run: (graph, packed weights, whether it is for one token) to a function.
Lowering = Callable[[GraphModule, PackedWeights, bool], Callable[..., Any]]


def lower(module: GraphModule, packed: PackedWeights, one_token: bool, chosen: Kernels = FAST) -> Callable[..., Any]:
    """`module` with the kernels `chosen`, in place, ready to run."""
    return direct(with_packed_weights(fuse(named(module, one_token, chosen), one_token), packed, one_token, chosen))


def named(module: GraphModule, one_token: bool, chosen: Kernels = FAST) -> GraphModule:
    """`module` with its kernels named, and its spelt-out norms and GELUs as one operation each, in place."""
    _name_kernels(module, one_token, chosen)
    for node in calls(module, aten.rsqrt.default):
        _as_norm(module, node)
    for node in calls(module, aten.tanh.default):
        _as_gelu(node)
    return module


def with_packed_weights(
    module: GraphModule, packed: PackedWeights, one_token: bool, chosen: Kernels = FAST
) -> GraphModule:
    """`module` with its linear maps on weights in oneDNN's layout if that pays, and its experts ready, in place."""
    for node in calls(module, torch.ops.specbench.experts.default):
        _route(module, node, packed, chosen, chosen.large_fp32[0 if one_token else 1])
    weights = [value(node) for node in module.graph.nodes if node.op == "get_attr"]
    if torch.backends.mkldnn.is_available() and all(weight.device.type == "cpu" for weight in weights):
        for node in calls(module, aten.linear.default):
            _lean_linear(module, node, packed, chosen, chosen.large_fp32[0 if one_token else 1])
    return module


def direct(module: GraphModule) -> Callable[..., Any]:
    """`module` ready to run, its operations called through torch's own bindings if there are any."""
    for node in module.graph.nodes:
        _through_torch(node)
    return compiled_to_python(finished(module))


def compiled(module: GraphModule, packed: PackedWeights, one_token: bool) -> Callable[..., Any]:
    """`module` for torch.compile, which makes kernels and layouts of its own, at the first run for each new size."""
    _name_kernels(module, one_token, FAST)
    compiled_to_python(finished(module))
    made: Callable[..., Any] = torch.compile(module, options={"freezing": True})
    return made


def _name_kernels(module: GraphModule, one_token: bool, chosen: Kernels) -> None:
    for node in calls(module, torch.ops.specbench.write.default):
        node.target = kernels.write
    for node in calls(module, torch.ops.specbench.attend.default):
        query, key = value(node.args[0]), value(node.args[1])
        alone = one_token and query.shape[1] == key.shape[1] and len(node.args) == 5
        node.target = chosen.attend_alone if alone else chosen.attend


def _as_norm(module: GraphModule, root: Node) -> None:
    """w (x rsqrt(mean(x^2) + epsilon)), or of x - mean(x), spelt out in eight to ten operations, as one operation.

    If it is weighed in fp32 and rounded last, as Gemma's and Cohere's, that is `kernels.wide_norm`.
    """
    plus = _producer(root, 0, aten.add.Tensor)
    mean = _producer(plus, 0, aten.mean.dim)
    power = _producer(mean, 0, aten.pow.Tensor_Scalar)
    if plus is None or mean is None or power is None or mean.args[1:] != ([-1], True) or power.args[1] != 2:
        return
    wide: Any = power.args[0]
    centre = _producer(power, 0, aten.sub.Tensor)
    if centre is not None:
        average, wide = _producer(centre, 1, aten.mean.dim), centre.args[0]
        if average is None or average.args != (wide, [-1], True):
            return
    narrow = wide.args[0] if wide.target == aten.to.dtype else wide
    scaled = _only_user(root, aten.mul.Tensor)
    if scaled is None or not {centre or wide, centre or narrow} & set(scaled.args):
        return
    cast = _only_user(scaled, aten.to.dtype)
    weighted = _only_user(cast or scaled, aten.mul.Tensor)
    if weighted is None:
        return
    weight = next((node for node in weighted.all_input_nodes if constant(module, node) is not None), None)
    rounded = weighted if cast is not None else _only_user(weighted, aten.to.dtype) or weighted
    if weight is None or value(weight).dim() != 1 or value(rounded).dtype != value(narrow).dtype:
        return
    size, epsilon = [int(value(weight).shape[0])], plus.args[1]
    if centre is None and value(weight).dtype == value(narrow).dtype:
        replace_by_call(rounded, aten.rms_norm.default, (narrow, size, weight, epsilon))
    else:
        replace_by_call(rounded, kernels.wide_norm, (narrow, size, weight, epsilon, centre is not None))


def _as_gelu(root: Node) -> None:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), spelt out in eight operations, as one operation."""
    scaled = _producer(root, 0, aten.mul.Tensor)
    inner = _producer(scaled, 0, aten.add.Tensor)
    cubed = _producer(inner, 1, aten.mul.Tensor)
    power = _producer(cubed, 0, aten.pow.Tensor_Scalar)
    plus = _only_user(root, aten.add.Tensor)
    whole = None if plus is None else _only_user(plus, aten.mul.Tensor)
    if scaled is None or inner is None or cubed is None or power is None or plus is None or whole is None:
        return
    x = power.args[0]
    half = next((node for node in whole.all_input_nodes if node is not plus), None)
    numbers = (scaled.args[1], cubed.args[1], power.args[1], plus.args[1])
    if inner.args[0] is not x or half is None or half.args != (x, 0.5) or half.target != aten.mul.Tensor:
        return
    if not _near(numbers, (math.sqrt(2 / math.pi), 0.044715, 3.0, 1.0)):
        return
    replace_by_call(whole, aten.gelu.default, (x,), {"approximate": "tanh"})


def _near(numbers: Sequence[object], others: Sequence[float]) -> bool:
    return all(
        isinstance(one, int | float) and math.isclose(one, other) for one, other in zip(numbers, others, strict=True)
    )


def _producer(node: Node | None, argument: int, target: object) -> Node | None:
    found = None if node is None else node.args[argument]
    return found if isinstance(found, Node) and found.target == target else None


def _only_user(node: Node, target: object) -> Node | None:
    user = next(iter(node.users)) if len(node.users) == 1 else None
    return user if user is not None and user.target == target else None


# Python's own bindings of an operation take half the time of a call through torch.ops.
FUNCTIONS = {
    aten.add.Tensor: torch.add,
    aten.mul.Tensor: torch.mul,
    aten.relu.default: torch.relu,
    aten.silu.default: torch.nn.functional.silu,
    aten.gelu.default: torch.nn.functional.gelu,
    aten.tanh.default: torch.tanh,
    aten.embedding.default: torch.embedding,
    aten.split_with_sizes.default: torch.split_with_sizes,
    aten.transpose.int: torch.transpose,
    aten.rms_norm.default: torch.rms_norm,
    aten.linear.default: torch.nn.functional.linear,
    aten.sub.Tensor: torch.sub,
    aten.gather.default: torch.gather,
    aten.where.ScalarOther: torch.where,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.flatten.using_ints: torch.flatten,
    aten.cat.default: torch.cat,
    aten.cos.default: torch.cos,
    aten.sin.default: torch.sin,
}
METHODS = {aten.view.default: "view", aten.reshape.default: "reshape", aten.sym_size.int: "size"}
WIDENINGS = {torch.float32: "float", torch.bfloat16: "bfloat16"}


def _through_torch(node: Node) -> None:
    if node.op != "call_function" or node.kwargs:
        return
    if node.target in FUNCTIONS:
        node.target = cast(Callable[..., Any], FUNCTIONS[node.target])
    elif node.target in METHODS:
        node.op, node.target = "call_method", METHODS[node.target]
    elif node.target == aten.to.dtype and len(node.args) == 2 and node.args[1] in WIDENINGS:
        node.op, node.target, node.args = "call_method", WIDENINGS[node.args[1]], node.args[:1]  # type: ignore[index]


def _lean_linear(module: GraphModule, node: Node, packed: PackedWeights, chosen: Kernels, large_fp32: int) -> None:
    weight = constant(module, node.args[1])
    bias = node.args[2] if len(node.args) > 2 else None
    if weight is None or value(node.args[0]).dtype != weight.dtype or not _pays(weight, large_fp32):
        return
    with module.graph.inserting_before(node):
        laid_out = add_constant(module, packed.of(weight))
    replace_by_call(node, chosen.linear, (node.args[0], laid_out, bias))


def _pays(weight: Tensor, large_fp32: int) -> bool:
    """Whether a map on `weight` is faster in oneDNN's own layout."""
    if weight.dtype == torch.bfloat16:
        return computes_bf16()
    return weight.dtype == torch.float32 and weight.numel() >= large_fp32


def _route(module: GraphModule, node: Node, packed: PackedWeights, chosen: Kernels, large_fp32: int) -> None:
    layer = ExpertLayer.of(module, node)

    def each(weight_XNK: Tensor, bias: Tensor | None) -> ExpertMap:
        if weight_XNK.device.type != "cpu":
            return ExpertMap(weight_XNK, bias, torch.nn.functional.linear)
        alone = weight_XNK.unbind()
        if torch.backends.mkldnn.is_available() and _pays(alone[0], large_fp32):
            return ExpertMap([packed.of(one) for one in alone], bias, chosen.linear)
        return ExpertMap(alone, bias, torch.nn.functional.linear)

    up, down = each(layer.up, layer.up_bias), each(layer.down, layer.down_bias)
    replace_by_call(node, RoutedExperts(up, down, layer.gate, packed.reads), node.args[:3])
