"""Parts of a network, and what it computes at its depths.

A network reduced to its first layers, or without some sublayers, with its own final norm, head and weights; the states
at several depths and the input of the head, returned with the logits.

Depends on the names of decoders in `transformers`, not on caches or sessions.
"""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specbench.errors import UserError

KINDS = ("attn", "cross", "mlp")  # self-attention, attention to the encoded source, feed-forward
NAMED = re.compile(r"(attn|cross|mlp|layer)(0|[1-9]\d*)")


class Part(NamedTuple):
    """The first `layers` decoder layers, without the sublayers `skipped`.

    'attn2' is the self-attention of layer 2, counted from 0.
    """

    layers: int
    skipped: frozenset[str] = frozenset()

    @property
    def caching(self) -> list[int]:
        """The layers whose self-attention runs, and so caches its tokens."""
        return [layer for layer in range(self.layers) if f"attn{layer}" not in self.skipped]


def part_without(layers: int, names: Iterable[str], kinds: Sequence[str]) -> Part:
    """The part of a decoder without the sublayers in `names`.

    The decoder has `layers` layers, each with sublayers of these `kinds`. 'layer2' names all sublayers of layer 2. If
    all sublayers of the last layers are skipped, the part is an early exit. Raises ValueError if a name is not a
    sublayer, or layer 0's attention, whose cache counts the tokens, would be skipped.
    """
    skipped = set[str]()
    for name in names:
        found = NAMED.fullmatch(name)
        if found is None:
            raise ValueError(f"{name} is not a sublayer; give {', '.join(f'{kind}N' for kind in (*kinds, 'layer'))}")
        kind, layer = found[1], int(found[2])
        if layer >= layers:
            raise ValueError(f"{name}: the target has {layers} decoder layers, 0 to {layers - 1}")
        if kind not in (*kinds, "layer"):
            raise ValueError(f"{name}: a layer of the target has {', '.join(kinds)}")
        skipped |= {f"{one}{layer}" for one in (kinds if kind == "layer" else (kind,))}
    if "attn0" in skipped:
        raise ValueError("attn0 cannot be skipped: the first layer's cache counts the tokens that were read")
    while all(f"{kind}{layers - 1}" in skipped for kind in kinds):
        skipped -= {f"{kind}{layers - 1}" for kind in kinds}
        layers -= 1
    return Part(layers, frozenset(skipped))


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
    return tuple(kind for kind in KINDS if _names_of_sublayer(first, kind))


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
    """The output projection [D] -> [V] itself, also if `return_states` has wrapped it."""
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
        names = _names_of_sublayer(block, kind)
        if names[0].startswith("layer."):  # T5, whose sublayers add their input themselves
            parts = made._modules["layer"] = shell(made._modules["layer"])
            parts._modules[names[0].removeprefix("layer.")] = nn.Identity() if kind == "mlp" else _NoT5Attention()
        elif kind == "mlp":
            made._modules.update({name: nn.Identity() for name in names[:-1]} | {names[-1]: _Nothing()})
        else:
            made._modules[names[0]] = _NoAttention()
    return made


def _names_of_sublayer(block: Any, kind: str) -> tuple[str, ...]:
    """The names of the block's sublayer of this kind; empty if it has none."""
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


def _tap(states: dict[int, Tensor], depth: int, _: Any, read: Any, out: Any = None) -> None:
    """A hook before the first layer, or after another: what it has read, or returned, are the states at `depth`."""
    found = read if out is None else out
    states[depth] = found[0] if isinstance(found, tuple) else found


class Taps:
    """The states after so many decoder layers, 0 being the embeddings, of the latest run. `close` stops it."""

    def __init__(self, network: Any, depths: Sequence[int]) -> None:
        """Raises ValueError if the network has fewer layers."""
        layers: Any = layer_list(network) if depths else []
        if depths and not 0 <= min(depths) <= max(depths) <= decoder_layers(network):
            raise ValueError(f"taps {list(depths)}: the target has {decoder_layers(network)} decoder layers")
        self._states: dict[int, Tensor] = {}
        self.depths = tuple(depths)
        self._hooks = [
            layers[0].register_forward_pre_hook(partial(_tap, self._states, 0))
            if depth == 0
            else layers[depth - 1].register_forward_hook(partial(_tap, self._states, depth))
            for depth in self.depths
        ]

    def taken(self) -> list[Tensor]:
        """[B, L, D] each, in the order of the depths; they are handed out once."""
        taken = [self._states[depth] for depth in self.depths]
        self._states.clear()
        return taken

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


# Some networks change their logits after the head, which would also change the states.
AFTER_THE_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class HeadAndInput(nn.Module):
    """An output projection [D] -> [V] that returns [V + D]: its logits, then its input.

    With taps the states after these layers follow, D for each.
    """

    def __init__(self, head: Any, taps: Taps | None = None) -> None:
        super().__init__()
        self.head = head
        self.taps = taps

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.head.weight
        return weight

    def forward(self, states: Tensor) -> Tensor:
        joined, *others = ([] if self.taps is None else self.taps.taken()[::-1]) + [states]
        for before in others:  # in twos, which the native kernels know
            joined = torch.cat([before, joined], -1)
        return torch.cat([self.head(states), joined], -1)


def changed_after_head(network: Any) -> str | None:
    """How `network` changes its logits after its head; None if it does not."""
    for name in AFTER_THE_HEAD:
        if getattr(network.config, name, None) not in (None, 1.0):
            return f"{type(network).__name__} changes its logits after its head ({name})"
    return None


def return_states(network: Any, key: str, depths: Sequence[int] = ()) -> int:
    """Make `network` return, after its logits, the input of its head and its states after so many decoder layers.

    Returns:
        D.

    Raises:
        UserError: the network changes its logits after the head, or has fewer layers.
    """
    if (reason := changed_after_head(network)) is not None:
        raise UserError(f"{key}: {reason}; use another target")
    head = network.get_output_embeddings()
    try:
        taps = Taps(network, depths) if depths else None
    except ValueError as error:
        raise UserError(f"{key}: {error}; use a draft that was made for this target") from error
    network.set_output_embeddings(HeadAndInput(head, taps))
    width: int = head.weight.shape[1]
    return width


class LastRead:
    """The states of the tokens that a session read last, or of the nodes of its tree."""

    def __init__(self) -> None:
        self._rows_LD: Tensor | None = None
        self._nodes_ND: Tensor | None = None
        self._end = 0

    def put(self, logits_LV: Tensor, width: int, end: int) -> None:
        """Hold the states in the last `width` columns; the last row is of token number `end` - 1."""
        if width:
            self._rows_LD, self._nodes_ND, self._end = logits_LV[:, -width:], None, end

    def put_nodes(self, logits_LV: Tensor, width: int, first: int) -> None:
        """Hold the states of tree nodes `first`, `first` + 1, ... in the last `width` columns of `logits_LV`."""
        if width:
            earlier = [] if self._nodes_ND is None else [self._nodes_ND[:first]]
            self._nodes_ND = torch.cat([*earlier, logits_LV[:, -width:]])

    def select(self, path: list[int], end: int) -> None:
        """Nodes of `path` become the last tokens read; the last of them is token number `end` - 1."""
        if self._nodes_ND is not None and path:
            self._rows_LD, self._end = self._nodes_ND[path], end
        self._nodes_ND = None

    def states(self, start: int, stop: int, tap_width: int = 0) -> Tensor | None:
        """[stop - start, D] of tokens `start` to `stop` - 1, or None if they were not all in the last read.

        The last `tap_width` columns are left out.
        """
        rows = self._rows(start, stop)
        return rows if rows is None or not tap_width else rows[:, :-tap_width]

    def tapped(self, start: int, stop: int, tap_width: int) -> Tensor | None:
        """The last `tap_width` columns of the states at tokens `start` to `stop` - 1; None if those are not held."""
        rows = self._rows(start, stop)
        return None if rows is None else rows[:, rows.shape[1] - tap_width :]

    def _rows(self, start: int, stop: int) -> Tensor | None:
        if self._rows_LD is None:
            return None
        first = self._end - len(self._rows_LD)
        return self._rows_LD[start - first : stop - first] if first <= start < stop <= self._end else None
