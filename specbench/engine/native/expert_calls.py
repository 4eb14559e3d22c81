"""A layer's experts in the kernels of `kernels.c`, between the programs of a step.

Shapes: T tokens, K experts chosen for each, E channels of the model, M inner channels of an expert.
"""

import ctypes

import torch
from torch import Tensor
from torch.fx import GraphModule

from specbench.engine.capture.expert_layers import CLAMPED, ExpertLayer
from specbench.engine.capture.lower import PackedWeights
from specbench.engine.capture.nodes import calls, replace_by_call, value
from specbench.engine.experts import ExpertReads
from specbench.engine.native.native_run import LINE
from specbench.engine.native.weights import laid_out
from specbench.kernels import library
from specbench.kernels.structures import Op, RawExperts

ACTIVATIONS = {"SiLUActivation": Op.SILU, "SiLU": Op.SILU, "GELUActivation": Op.GELU, "GELUTanh": Op.GELU_TANH,
               "ReLU": Op.RELU}  # fmt: skip


class NativeExperts:
    """A layer's experts, and room for what they compute; it notes which of them a run reads."""

    def __init__(self, layer: ExpertLayer, packed: PackedWeights) -> None:
        self._reads: ExpertReads = packed.reads
        self._held = [[packed.of(one, laid_out) for one in weight] for weight in (layer.up, layer.down)]
        self._biases = layer.up_bias, layer.down_bias
        self._addresses = [(ctypes.c_void_p * len(held))(*[one.data_ptr() for one in held]) for held in self._held]
        number, self._width, self._inner = layer.down.shape
        gate = layer.gate
        self._raw = RawExperts(
            *(ctypes.addressof(one) for one in self._addresses),
            *(None if bias is None else bias.data_ptr() for bias in self._biases),
            number, self._width, self._inner, layer.down.dtype == torch.bfloat16,
            ACTIVATIONS.get(gate.name, Op.SILU), gate.name == CLAMPED, gate.alpha, gate.limit,
        )  # fmt: skip
        self._room = torch.empty(0)
        self.__name__ = "experts"

    def __call__(self, states_TE: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
        self._reads.chosen.append(chosen_TK)
        states_TE, chosen_TK, weights_TK = states_TE.contiguous(), chosen_TK.contiguous(), weights_TK.contiguous()
        (tokens, per_token), threads = chosen_TK.shape, torch.get_num_threads()
        pairs, widest = tokens * per_token, max(self._width, self._inner)
        floats = pairs * (2 * self._width + 3 * self._inner + 2) + 2 * (self._raw.experts + 2)
        floats += -floats % LINE
        scratch = (tokens + 1) * (widest + 2 * LINE)
        if self._room.numel() < floats + threads * scratch:
            self._room = torch.empty(floats + threads * scratch)
        out_TE = torch.empty_like(states_TE)
        room = self._room.data_ptr()
        library().mix_experts(
            ctypes.byref(self._raw), states_TE.data_ptr(), chosen_TK.data_ptr(), weights_TK.data_ptr(),
            weights_TK.dtype == torch.bfloat16, tokens, per_token, out_TE.data_ptr(), room, room + 4 * floats, scratch,
            threads,
        )  # fmt: skip
        return out_TE


def with_native_experts(module: GraphModule, packed: PackedWeights) -> GraphModule:
    """`module` with its layers of experts in our kernels if these read their numbers, in place."""
    for node in calls(module, torch.ops.specbench.experts.default):
        layer = ExpertLayer.of(module, node)
        dtypes = value(node.args[0]).dtype, value(node.args[2]).dtype
        known = layer.gate.name == CLAMPED or layer.gate.name in ACTIVATIONS
        if known and layer.up.dtype == dtypes[0] and set(dtypes) <= {torch.float32, torch.bfloat16}:
            replace_by_call(node, NativeExperts(layer, packed), node.args[:3])
    return module
