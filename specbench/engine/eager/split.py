"""A network cut after its first layers, so that a token need not pass them twice.

In LayerSkip (Elhoushi et al. 2024, section 3.3) the first layers draft, and verification computes the later layers
alone, from the states at the exit. Here the first part returns these states after its logits, and the rest reads states
in place of tokens; both are networks over the weights of the whole.

Shapes: B rows, L tokens, V logits, D the network's width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from specbench.engine.eager.parts import (
    decoder_layers,
    empty,
    layer_list,
    shell,
    shell_of,
    with_layers,
    without_sublayers,
)
from specbench.engine.eager.states import changed_after_head
from specbench.engine.session import Part, Tokens


class _Wrapped(nn.Module):
    """A decoder layer in a wrapper that has its attributes."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer_itself = layer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer_itself"), name)


class Exit(_Wrapped):
    """The last layer of the first part. The states after it are collected once (`taken`) in each run."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.states: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.layer_itself(*args, **kwargs)
        self.states = out[0] if isinstance(out, tuple) else out
        return out

    def taken(self) -> Tensor:
        """States [B, L, D]."""
        taken, self.states = self.states, None
        assert taken is not None
        return taken


class Entry(_Wrapped):
    """The first layer of the rest: it reads the states that it was given instead of those of the layer before it."""

    def __init__(self, layer: Any, width: int, dtype: torch.dtype) -> None:
        super().__init__(layer)
        self.width, self.dtype = width, dtype
        self.states: Tensor | None = None

    def give(self, states_BLD: Tensor) -> Tensor:
        """Have the next run begin with these states. Returns what the network takes for its tokens [B, L]."""
        self.states = states_BLD.to(self.dtype)
        return states_BLD.new_zeros(states_BLD.shape[:2], dtype=torch.long)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        given, self.states = self.states, None
        return self.layer_itself(hidden_states if given is None else given, *args, **kwargs)


class _WithStates(nn.Module):
    """An output projection [V] that returns [V + D]: its logits, then the states at the exit; or these `alone`."""

    def __init__(self, head: Any, exit_: Exit, alone: bool) -> None:
        super().__init__()
        self.head, self.exit, self.alone = head, exit_, alone

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.head.weight
        return weight

    def forward(self, states: Tensor) -> Tensor:
        at_exit = self.exit.taken()
        return at_exit if self.alone else torch.cat([self.head(states), at_exit], -1)


class SplitModel(Protocol):
    """The interface of a model that a split is made of."""

    network: Any

    def ids(self, tokens: Tokens) -> Tensor: ...


class Split(NamedTuple):
    """A model in two parts, and the first part of the drafting model.

    Attributes:
        drafting: the part that drafts; after its logits, the last D columns are the states at the exit.
        first: the layers up to the exit; it returns those states alone.
        rest: the layers from there on. It reads states [L, D] in place of tokens.
        exit: how many layers come before the exit.
        layers: how many there are.
        width: D.
    """

    drafting: Any
    first: Any
    rest: Any
    exit: int
    layers: int
    width: int

    def states(self, rows: list[Tensor]) -> list[Tensor]:
        """The states [L, D] that follow the logits of the drafting part in each of `rows` [L, V + D]."""
        return [row[:, -self.width :] for row in rows]

    def give(self, states_LD: Tensor) -> None:
        """Have the rest's module read these states in its next run."""
        entry = entry_of(self.rest.network)
        assert entry is not None
        entry.give(states_LD.unsqueeze(0))

    @property
    def models(self) -> tuple[Any, Any, Any]:
        return self.drafting, self.first, self.rest


def split(network: Any, part: Part, model: Callable[[Any], Any]) -> Split:
    """`network` cut where `part` leaves it; `model` makes models of the networks."""
    layers, exit_ = list(layer_list(network)), part.shared
    kept = [without_sublayers(layers[number], part, number) for number in range(part.layers)]
    first = _returning(network, layers[:exit_], exit_, alone=True)
    like = _states(first)
    width = like.shape[-1]
    rest = [*map(empty, layers[:exit_]), Entry(_on_its_own(layers[exit_], layers[0]), width, like.dtype)]
    return Split(
        drafting=model(_returning(network, kept, exit_, alone=False)),
        first=model(first),
        rest=model(with_layers(network, [*rest, *layers[exit_ + 1 :]])),
        exit=exit_,
        layers=len(layers),
        width=width,
    )


def entry_of(network: Any) -> Entry | None:
    """Where `network` reads states; None where it reads tokens."""
    return next((layer for layer in layer_list(network) if isinstance(layer, Entry)), None)


def _returning(network: Any, layers: list[Any], exit_: int, alone: bool) -> Any:
    """A network of these layers that returns the states after the first `exit_`."""
    at_exit = Exit(layers[exit_ - 1])
    made = with_layers(network, [*layers[: exit_ - 1], at_exit, *layers[exit_:]])
    made.set_output_embeddings(_WithStates(network.get_output_embeddings(), at_exit, alone))
    return made


def _states(network: Any) -> Tensor:
    """The states [1, 1, D] at the exit after one token, for their width and dtype."""
    one = torch.zeros(1, 1, dtype=torch.long, device=network.device)
    read = {"input_ids": one} | ({"decoder_input_ids": one} if network.config.is_encoder_decoder else {})
    with torch.inference_mode():
        states: Tensor = network(**read, use_cache=False).logits
    return states


def _on_its_own(layer: Any, first: Any) -> Any:
    """`layer` able to be the first that runs: the relative position bias that T5 computes in layer 0 for all."""
    for path, attention in first.named_modules():
        name = "has_relative_attention_bias"
        if getattr(attention, name, False) and not getattr(layer.get_submodule(path), name):
            made = shell(layer)
            own = shell_of(made, path)
            own.has_relative_attention_bias = True
            own.relative_attention_bias = attention.relative_attention_bias
            return made
    return layer


def objection(network: Any, part: Part) -> str | None:
    """Why nothing of `part` can be reused; None where something can."""
    if (reason := changed_after_head(network)) is not None:
        return reason
    if part.shared == 0:
        return "its first layer is not computed whole"
    if part.shared == decoder_layers(network):
        return "no layer of the target is left"
    return None
