"""A network reduced to its first layers, or without some sublayers, with its own final norm, head and weights.

Depends on the names of decoders in `transformers`, not on caches or sessions.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.session import KINDS, Part

# What a layer's sublayers are called. A feed-forward layer of two matrices, in no module of its own, is called by both.
NAMES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "attn": (("self_attn",), ("attn",), ("attention",), ("layer.0",)),
    "cross": (("encoder_attn",), ("crossattention",), ("layer.1",)),
    "mlp": (("mlp",), ("feed_forward",), ("layer.2",), ("fc1", "fc2")),
}


def decoder_layers(network: Any) -> int:
    """How many layers the decoder has."""
    return len(layer_list(network))


def layer_list(network: Any) -> nn.ModuleList:
    """The decoder's layers."""
    return _stack(network)[1]


def sublayers(network: Any) -> tuple[str, ...]:
    """The kinds of sublayers that can be skipped in each of the decoder's layers."""
    first = _stack(network)[1][0]
    return tuple(kind for kind in KINDS if _found(first, kind))


def first_layers(network: Any, layers: int) -> Any:
    """`network` with the first `layers` of its decoder's layers."""
    return reduced(network, Part(layers))


def reduced(network: Any, part: Part) -> Any:
    """`network` with `part` of its decoder; a skipped sublayer adds nothing to the residual stream.

    Only the modules on the way to the part are copied, without their weights; a later change of `network` (its device,
    its dtype) need not show here.
    """
    blocks = list(layer_list(network))
    made = with_layers(network, [without_sublayers(blocks[number], part, number) for number in range(part.layers)])
    if (head := own_head(network)) is not network.get_output_embeddings():  # a part does not have all tapped states
        made.set_output_embeddings(head)
    return made


def own_head(network: Any) -> Any:
    """The output projection [D] -> [V] itself, also where `eager.states.return_states` has wrapped it."""
    head = network.get_output_embeddings()
    return getattr(head, "head", head)


def with_layers(network: Any, layers: Sequence[Any]) -> Any:
    """`network` with these decoder layers in place of its own.

    Only the modules on the way to them are copied, without their weights.
    """
    decoder = network.get_decoder()
    name, _ = _stack(network)
    path = next(path for path, module in network.named_modules() if module is decoder)
    made = shell(network)
    shell_of(made, path)._modules[name] = nn.ModuleList(layers)
    return made


def shell_of(module: Any, path: str) -> Any:
    """A copy of the submodule of `module` at `path`, put there as are copies of the modules on the way."""
    for step in path.split("."):
        copied = module._modules[step] = shell(module._modules[step])
        module = copied
    return module


class _NoAttention(nn.Module):
    """Replaces an attention: adds nothing, and caches nothing."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return torch.zeros_like(hidden_states), None


class _NoT5Attention(nn.Module):
    """Replaces an attention of T5, which adds its input itself and passes the position bias on."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None, None]:
        return hidden_states, kwargs.get("position_bias"), None


class _Nothing(nn.Module):
    """Replaces a feed-forward layer."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.zeros_like(hidden_states)


def without_sublayers(block: Any, part: Part, number: int) -> Any:
    """`block`, which is layer `number`, without the sublayers that `part` skips there."""
    return _without(block, [kind for kind in KINDS if f"{kind}{number}" in part.skipped])


def _without(block: Any, kinds: list[str]) -> Any:
    """`block` without its sublayers of these kinds."""
    if not kinds:
        return block
    made = shell(block)
    for kind in kinds:
        names = _found(block, kind)
        if names[0].startswith("layer."):  # T5, whose sublayers add their input themselves
            parts = made._modules["layer"] = shell(made._modules["layer"])
            parts._modules[names[0].removeprefix("layer.")] = nn.Identity() if kind == "mlp" else _NoT5Attention()
        elif kind == "mlp":
            made._modules.update({name: nn.Identity() for name in names[:-1]} | {names[-1]: _Nothing()})
        else:
            made._modules[names[0]] = _NoAttention()
    return made


def _found(block: Any, kind: str) -> tuple[str, ...]:
    """The names of the block's sublayer of this kind; none where it has none."""
    modules = dict(block.named_modules())
    return next((names for names in NAMES[kind] if all(name in modules for name in names)), ())


def _stack(network: Any) -> tuple[str, nn.ModuleList]:
    """The name and the list of the decoder's layers: the only list among its children."""
    lists = [
        (name, module) for name, module in network.get_decoder().named_children() if isinstance(module, nn.ModuleList)
    ]
    if len(lists) != 1:
        raise NotImplementedError(f"{type(network).__name__} does not have exactly one list of decoder layers")
    return lists[0]


def shell(module: Any) -> Any:
    """A copy of `module` itself, with the same weights and the same submodules, which can be replaced in the copy."""
    made = copy.copy(module)
    made.__dict__["_modules"] = dict(module._modules)
    return made
