"""Layers of experts in a captured graph: one named operation per layer, which reads only the chosen experts.

`transformers` chooses the function that runs a layer's experts by name, as it does for attention; while a network is
captured it chooses ours.

Shapes: T tokens, K experts chosen for each, X experts of the layer, E channels of the model, M inner channels of an
expert, N = 2 M.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import functional
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from specbench.engine.capture.nodes import constant
from specbench.engine.experts import ExpertReads

NAME = "specbench"  # of the function, in transformers' registry
CLAMPED = "clamped"  # GPT-OSS's gate; the others are named after their activation
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "SiLUActivation": functional.silu,
    "SiLU": functional.silu,
    "GELUActivation": functional.gelu,
    "GELUTanh": lambda x: functional.gelu(x, approximate="tanh"),
    "ReLU": functional.relu,
}


@torch.library.custom_op("specbench::experts", mutates_args=())
def experts(
    states: Tensor, chosen: Tensor, weights: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
    down_bias: Tensor | None, transposed: bool, gate: str, alpha: float, limit: float,
) -> Tensor:  # fmt: skip
    """The experts' results, weighed and added up: an operation that the rewrites find in a captured graph.

    `up` is [X, N, E] and `down` [X, E, M], or with `transposed` [X, E, N] and [X, M, E].
    """
    first, second = (
        ExpertMap(weights_of(one, transposed).unbind(), bias, functional.linear)
        for one, bias in ((up, up_bias), (down, down_bias))
    )
    return mixed(states, chosen, weights, first, second, Gate(gate, alpha, limit))


@experts.register_fake
def _(states: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(states)


def experts_forward(module: Any, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """A layer's experts as `transformers` calls them."""
    if not module.has_gate or module.has_post_expert_norm:
        raise NotImplementedError(f"experts of another form ({type(module).__name__})")
    if module.is_concatenated:
        gate, alpha, limit = type(module.act_fn).__name__, 0.0, 0.0
        if gate not in ACTIVATIONS or type(module)._apply_gate.__name__ != "_default_apply_gate":
            raise NotImplementedError(f"experts with a gate of their own ({type(module).__name__})")
    elif hasattr(module, "alpha") and hasattr(module, "limit"):
        gate, alpha, limit = CLAMPED, float(module.alpha), float(module.limit)
    else:
        raise NotImplementedError(f"experts with a gate of their own ({type(module).__name__})")
    biases = (module.gate_up_proj_bias, module.down_proj_bias) if module.has_bias else (None, None)
    made: Tensor = experts(
        states, chosen, weights, module.gate_up_proj, module.down_proj, *biases, module.is_transposed,
        gate, alpha, limit,
    )  # fmt: skip
    return made


ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)


@dataclass(frozen=True)
class Gate:
    """The gate between an expert's two maps: from [..., N] to [..., M]."""

    name: str
    alpha: float
    limit: float

    def __call__(self, rows: Tensor) -> Tensor:
        if self.name == CLAMPED:
            gate, up = rows[..., ::2].clamp(max=self.limit), rows[..., 1::2].clamp(-self.limit, self.limit)
            return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))
        gate, up = rows.chunk(2, -1)
        return ACTIVATIONS[self.name](gate) * up


@dataclass(frozen=True)
class ExpertMap:
    """A linear map of each expert: its weights as `by` reads them; on a GPU all in one tensor."""

    weights: Sequence[Tensor] | Tensor
    bias_XN: Tensor | None
    by: Callable[..., Tensor]

    def __call__(self, expert: int, rows: Tensor) -> Tensor:
        return self.by(rows, self.weights[expert], None if self.bias_XN is None else self.bias_XN[expert])

    def of_pairs(self, experts_S: Tensor, rows_SK: Tensor) -> Tensor:
        """The map of each row's own expert, in operations whose sizes do not depend on the experts: for a graph."""
        assert isinstance(self.weights, Tensor)
        mapped_SN = torch.bmm(self.weights[experts_S], rows_SK.unsqueeze(-1)).squeeze(-1)
        return mapped_SN if self.bias_XN is None else mapped_SN + self.bias_XN[experts_S]


@dataclass(frozen=True)
class ExpertLayer:
    """A layer's experts in a captured graph: weights [X, N, E] and [X, E, M], and biases."""

    up: Tensor
    down: Tensor
    up_bias: Tensor | None
    down_bias: Tensor | None
    gate: Gate

    @staticmethod
    def of(module: GraphModule, node: Node) -> "ExpertLayer":
        """The layer of a call of `specbench::experts`."""
        *_, transposed, gate, alpha, limit = node.args
        held: list[Any] = [constant(module, one) for one in node.args[3:7]]
        up, down = (weights_of(weight.detach(), bool(transposed)) for weight in held[:2])
        return ExpertLayer(up, down, held[2], held[3], Gate(str(gate), float(alpha), float(limit)))  # type: ignore[arg-type]


class RoutedExperts:
    """A layer's experts in a graph that is ready to run: it notes which of them a run reads."""

    def __init__(self, up: ExpertMap, down: ExpertMap, gate: Gate, reads: ExpertReads) -> None:
        self._up, self._down, self._gate, self._reads = up, down, gate, reads
        self.__name__ = "experts"

    def __call__(self, states_TE: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
        self._reads.chosen.append(chosen_TK)
        return mixed(states_TE, chosen_TK, weights_TK, self._up, self._down, self._gate)


def weights_of(weight: Tensor, transposed: bool) -> Tensor:
    """The weights [X, N, K] of the experts' maps."""
    return weight.mT if transposed else weight


def mixed(
    states_TE: Tensor, chosen_TK: Tensor, weights_TK: Tensor, up: ExpertMap, down: ExpertMap, gate: Gate
) -> Tensor:
    """Each token's experts, weighed and added up in the order in which it chose them, [T, E]."""
    tokens, width = chosen_TK.shape
    if states_TE.is_cuda:
        experts_S = chosen_TK.flatten()
        found_SE = down.of_pairs(experts_S, gate(up.of_pairs(experts_S, states_TE.repeat_interleave(width, 0))))
    else:
        found_SE = _by_expert(states_TE, chosen_TK.tolist(), width, up, down, gate)
    weighed_TKE = found_SE.view(tokens, width, -1) * weights_TK.unsqueeze(-1)
    return weighed_TKE.sum(1).to(states_TE.dtype)


def _by_expert(
    states_TE: Tensor, chosen: list[list[int]], width: int, up: ExpertMap, down: ExpertMap, gate: Gate
) -> Tensor:
    """The results of each token's `width` experts [T * K, E]; the weights of an expert are read once."""
    places: dict[int, list[int]] = {}  # for each chosen expert, its places among the tokens' choices
    for token, one in enumerate(chosen):
        for place, expert in enumerate(one):
            places.setdefault(expert, []).append(token * width + place)
    found_SE = states_TE.new_empty(len(chosen) * width, states_TE.shape[1])
    for expert, at in places.items():
        if len(chosen) == 1:
            found_SE[at[0]] = down(expert, gate(up(expert, states_TE)))[0]
        else:
            index = torch.tensor(at)
            rows = states_TE.index_select(0, index // width)
            found_SE.index_copy_(0, index, down(expert, gate(up(expert, rows))))
    return found_SE
