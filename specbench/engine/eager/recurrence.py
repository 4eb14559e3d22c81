"""How a network's recurrent layers read several tokens at once: projections together, states one after another.

A module of `transformers` calls two functions of its file for the recurrent part: a causal convolution, and a scan,
which returns only the last state. While a session reads, both are replaced by ours. They take each token from the
state of the token it follows, by the function that the module itself uses for a single token, and hold every state.

Shapes: B rows, L new tokens, D channels of the convolution, K its width.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, cache_utils
from transformers.activations import ACT2FN
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from specbench.engine.eager.cache import (
    HELD,
    Arrangement,
    HybridLayer,
    KeyValueLayer,
    RecurrentLayer,
    RecurrentStates,
    new_cache,
)
from specbench.errors import UserError

ATTENTIONS = {"full_attention", "sliding_attention", "chunked_attention"}  # kinds of layers, in a config
RECURRENT = {"conv", "linear_attention", "hybrid", "hybrid_sliding"}
CONVOLUTION = "causal_conv1d_fn"
# Families whose completions `tests/engine/eager/test_recurrent.py` compares with reading one token at a time.
FAMILIES = (
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "mamba", "mamba2",
    "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba2",
)  # fmt: skip


class Reading:
    """One run of a network: what its rows read, and the states of the layer that is running."""

    def __init__(self, new: Sequence[Arrangement]) -> None:
        self.new = list(new)
        self.rows: list[RecurrentStates] = []
        self.from_nothing = False  # a long text from its beginning, which the network's own functions read faster

    def enter(self, rows: list[RecurrentStates]) -> None:
        """A layer with these states begins to run."""
        (first, *others), new = rows, self.new[0]
        self.rows, self.from_nothing = rows, first.is_empty and not others and not new.parents and new.tokens > HELD

    def stepped(
        self, zeros: Callable[[], Tensor], step: Callable[[int, Tensor], tuple[Tensor, Tensor]]
    ) -> list[Tensor]:
        """The first results of `step` for each new token, given its number and the states [B, ...] that it follows.

        `step` also returns the states after it. `zeros` is the state [1, ...] before the first token.
        """
        for row in self.rows:
            if not row.states:
                row.states = [zeros()]
        before = [new.before(row.held - new.tokens) for row, new in zip(self.rows, self.new, strict=True)]
        found = []
        for token in range(max(new.tokens for new in self.new)):
            states = [row.states[held[min(token, len(held) - 1)]] for row, held in zip(self.rows, before, strict=True)]
            out, after = step(token, states[0] if len(states) == 1 else torch.cat(states))
            found.append(out)
            for number, (row, new) in enumerate(zip(self.rows, self.new, strict=True)):
                if token < new.tokens:
                    row.states.append(after[number : number + 1])
        return found


def _convolve(
    reading: Reading,
    own: Callable[..., Tensor],
    x: Tensor,  # names as modules give them
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **options: Any,
) -> Tensor:
    """The module's causal convolution, after the tokens that each row has read or its nodes' ancestors."""
    width = weight.shape[-1]
    if reading.from_nothing:
        reading.rows[0].begin(x, width)
        return own(x, weight, bias, activation=activation, **options)
    windows_BDLK = torch.cat(
        [
            row.windows(x[number : number + 1], width, new)
            for number, (row, new) in enumerate(zip(reading.rows, reading.new, strict=True))
        ]
    )
    out_BDL = (windows_BDLK.float() * weight.float().unsqueeze(1)).sum(-1)
    if bias is not None:
        out_BDL = out_BDL + bias.float().unsqueeze(-1)
    out_BDL = out_BDL.to(weight.dtype)
    return (out_BDL if activation is None else ACT2FN[activation](out_BDL)).to(x.dtype)


def _gated_delta_rule(
    reading: Reading, own: Any, single: Any, query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Any:
    """Qwen 3-Next's and its successors' linear attention."""
    if reading.from_nothing:
        return own(query, key, value, **options)
    options["output_final_state"] = True
    by_token = {name: options.pop(name) for name in ("g", "beta")}

    def step(token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        at = slice(token, token + 1)
        parts = {name: values[:, at] for name, values in by_token.items()}
        found: tuple[Tensor, Tensor] = single(
            query[:, at], key[:, at], value[:, at], **(options | parts | {"initial_state": state})
        )
        return found

    shape = 1, value.shape[2], key.shape[3], value.shape[3]
    return torch.cat(reading.stepped(lambda: value.new_zeros(shape, dtype=torch.float32), step), 1), None


def _mamba2(
    reading: Reading, own: Any, single: Any, inputs: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, **options: Any
) -> Any:
    """The scan of Mamba-2 and the hybrids with it, whose limits of dt here also hold for single tokens."""
    if reading.from_nothing:
        return own(inputs, dt, A, B, C, **options)
    _, _, heads, width = inputs.shape
    bias, D = options["dt_bias"], options["D"]
    dt = functional.softplus(dt + bias.to(dt.dtype)).clamp(*options["dt_limit"])
    steps_BLHW = dt.unsqueeze(-1).expand(-1, -1, -1, width)
    decay = A[:, None, None].expand(-1, width, B.shape[-1]).float()
    skip = None if D is None else D.unsqueeze(-1).expand(-1, width)

    def step(token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        after = state.clone()  # which is written in place
        out = single(after, inputs[:, token], steps_BLHW[:, token], decay, B[:, token], C[:, token], skip)
        return out.unsqueeze(1), after

    shape = 1, heads, width, B.shape[-1]
    return torch.cat(reading.stepped(lambda: inputs.new_zeros(shape, dtype=torch.float32), step), 1), None


def _mamba(
    reading: Reading, own: Any, single: Any, inputs: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, **options: Any
) -> Any:
    """The scan of the first Mamba."""
    if reading.from_nothing:
        return own(inputs, dt, A, B, C, **options)
    D, gate, bias = options["D"], options["z"], options["delta_bias"]

    def step(token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        after = state.clone()
        out = single(
            after, inputs[..., token], dt[..., token], A, B[..., token], C[..., token], D,
            z=None if gate is None else gate[..., token], dt_bias=bias, dt_softplus=options["delta_softplus"],
        )  # fmt: skip
        return out.unsqueeze(-1), after

    shape = 1, inputs.shape[1], A.shape[-1]
    return torch.cat(reading.stepped(lambda: inputs.new_zeros(shape, dtype=torch.float32), step), -1), None


# A file's scan of many tokens, the same of one token, and ours.
SCANS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", _gated_delta_rule),
    ("mamba2_chunk_scan", "mamba2_selective_state_update", _mamba2),
    ("mamba_selective_scan", "mamba_selective_state_update", _mamba),
)


@dataclass(frozen=True)
class Recurrence:
    """The recurrent layers of a network."""

    module: ModuleType  # where its layers take their functions from
    layers: tuple[type[Any], ...]  # of a cache

    @staticmethod
    def of(network: Any) -> "Recurrence | None":
        """None for a network whose layers all hold keys and values.

        Raises UserError if its states cannot be rolled back.
        """
        config = network.config.get_text_config(decoder=True)
        kinds = set(getattr(config, "layer_types", None) or ())
        stateful = getattr(network, "_is_stateful", False) and not (kinds and kinds <= ATTENTIONS)
        if not stateful and kinds.isdisjoint(RECURRENT):
            return None
        if config.model_type not in FAMILIES:
            raise UserError(
                f"{type(network).__name__}: the states of {config.model_type} cannot be rolled back here; use a model "
                f"without recurrent layers, or of {', '.join(FAMILIES)}"
            )
        layers = tuple(_layer_for(type(layer)) for layer in DynamicCache(config=config).layers)
        return Recurrence(sys.modules[type(network).__module__], layers)

    @property
    def recurrent_layers(self) -> int:
        """How many of the layers have a recurrent state."""
        return sum(issubclass(layer, RecurrentLayer) for layer in self.layers)

    @property
    def attends(self) -> bool:
        """Whether some layers have an attention, to which a layout applies."""
        return not {KeyValueLayer, HybridLayer}.isdisjoint(self.layers)

    def cache(self) -> DynamicCache:
        """An empty cache of a session."""
        made = new_cache()
        made.layers = [layer() for layer in self.layers]
        return made

    @contextmanager
    def reading(self, layers: Sequence[Any], new: Sequence[Arrangement]) -> Iterator[None]:
        """A context in which the network reads `new` tokens, one arrangement per row, into a cache's `layers`."""
        reading, own = Reading(new), vars(self.module)
        for layer in layers:
            if isinstance(layer, RecurrentLayer):
                layer.reading = reading
        replaced = {CONVOLUTION: own[CONVOLUTION]}
        made = {CONVOLUTION: partial(_convolve, reading, own[CONVOLUTION])}
        for many, one, ours in SCANS:
            if many in own:
                replaced[many] = own[many]
                made[many] = partial(ours, reading, own[many], own[one])
        own.update(made)
        try:
            yield
        finally:
            own.update(replaced)


def _layer_for(kind: type[Any]) -> type[Any]:
    if issubclass(kind, getattr(cache_utils, "DummyLayer", ())):
        return kind
    if not issubclass(kind, LinearAttentionCacheLayerMixin):
        return KeyValueLayer
    return HybridLayer if issubclass(kind, DynamicLayer) else RecurrentLayer
