"""The declaration of a network beside the target: its steps, its caches, and the entries that its modules see.

An entry is what the network reads at one place of a text: a token, a state that it joins, or both. The first `length`
entries of a session are of the text; a tree of further ones may follow, until it is forgotten.

Shapes: B rows, L new entries, C slots, S tokens of the source, D width, F numbers of a state that an entry joins, W
numbers that a step returns, H heads, K key heads, E channels of a head, V logits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from specbench.engine.capture.static import USUAL_COUNTS
from specbench.engine.layout import Layout, Sight
from specbench.engine.operations import kernels
from specbench.engine.session import Session

# Queries [B, H, L, E], keys and values [B, K, L, E] of the new entries to what they attend to [B, H, L, E].
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
# Attention: queries, keys, values, an additive bias, and the scale of scores.
Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
# Distances to [H, *distances.shape], added to the scores of keys so far before their query; or None.
ByDistance = Callable[[Tensor], Tensor | None]
States = tuple[Tensor, Tensor]  # keys and values [1, H, S, E]


@dataclass(frozen=True)
class Source:
    """Inputs of cross-attention (keys and values [B, H, S, E], a bias [B, 1, 1, S] to hide padding) and its kernel."""

    keys: Tensor
    values: Tensor
    bias: Tensor | None = None
    attention: Attention = kernels.attend

    @staticmethod
    def of(session: Session, layer: int = -1) -> "Source | None":
        """The source of one of the target's decoder layers, -1 being the last; None for a target without a source."""
        states = session.source_states(layer)
        return None if states is None else Source(*states)


class Prediction(NamedTuple):
    """The results of a network for entries: states [L, D], and logits [L, V or more]."""

    states_LD: Tensor
    logits_LV: Tensor


@dataclass(frozen=True)
class Entries:
    """The new entries of a step.

    Attributes:
        ids_BL: their tokens.
        states: what they join [B, L, F]; None in a step that reads no states.
        positions_BL: their numbers in the text.
        sources: what cross-attention reads, layer by layer.
        layout: where their keys and values are written, and which slots each sees.
        buffers: keys and values of all slots, layer by layer.
        hides: whether some entry does not see all slots.
        near: the bias by distance of all slots [H, C].
        writing: puts keys or values into slots of a buffer.
        attention: the kernel.
    """

    ids_BL: Tensor
    states: Tensor | None
    positions_BL: Tensor
    sources: Sequence[Source]
    layout: Layout
    buffers: Sequence[Tensor]
    hides: bool
    near: Callable[[ByDistance], Tensor | None]
    writing: Callable[[Tensor, Tensor, Tensor], None]
    attention: Attention

    @property
    def source(self) -> Source | None:
        """The source that the one layer with cross-attention reads."""
        return self.sources[0] if self.sources else None

    def bias(self, by_distance: ByDistance | None = None) -> Tensor | None:
        """The bias of attention scores [1, 1 or H, L, C]: by distance, and to hide slots. None for nothing."""
        near_HC = None if by_distance is None else self.near(by_distance)
        return self.layout.bias(near_HC, self.buffers[0].dtype) if self.hides or near_HC is not None else None

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the entries' keys and values in a layer, and return the keys and values of all slots."""
        keys, values = self.buffers[2 * layer : 2 * layer + 2]
        at = self.layout.slots_BL.flatten()
        self.writing(keys, at, key)
        self.writing(values, at, value)
        return keys, values

    def attend(self, layer: int, bias: Tensor | None, scale: float) -> Attend:
        """Self-attention in a layer, after writing keys and values."""

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.write(layer, key, value)
            return self.attention(query, keys, values, bias, scale)

        return attend


@dataclass(frozen=True)
class StepOf:
    """A step of a network.

    Attributes:
        run: returns [1, L, W] of entries, or [1, 1, W] of the last.
        width: numbers of the state that each entry joins; 0 for none.
        least: entries that it has at least.
        usual: numbers of entries whose places are looked up in advance.
    """

    run: Callable[[Entries], Tensor]
    width: int = 0
    least: int = 1
    usual: Sequence[int] = USUAL_COUNTS


@dataclass(frozen=True)
class Beside:
    """A network beside the target, bound to it.

    Attributes:
        name: its name in messages.
        network: its modules.
        borrowed: modules of the target that its steps run.
        weight: a weight whose dtype and device its steps use.
        settings: what its steps depend on besides modules, as plain values.
        steps: by name.
        caches: (heads, channels) of keys and of values, layer by layer.
        crosses: the same of the source, one pair for each of `source_layers`.
        source_layers: the target's decoder layers whose keys and values of the source it reads.
        sight: which new entries each new entry attends to; None: those before it.
        readable: how many token ids it reads, if the target reads fewer.
    """

    name: str
    network: nn.Module
    borrowed: Mapping[str, nn.Module]
    weight: Tensor
    settings: Any
    steps: Mapping[str, StepOf]
    caches: Sequence[tuple[int, int]]
    crosses: Sequence[tuple[int, int]] = field(default=())
    source_layers: Sequence[int] = ()
    sight: Sight | None = None
    readable: int = 0

    def sources(self, session: Session) -> list[States]:
        """Keys and values of the source in a target's session, layer by layer."""
        found = [session.source_states(layer) for layer in self.source_layers] if self.crosses else []
        return [states for states in found if states is not None]


class EntrySession(Protocol):
    """The entries of one text, and nodes of a tree after them."""

    length: int  # entries of the text

    @property
    def nodes(self) -> int:
        """Entries of the tree."""
        ...

    def at_once(self, count: int) -> int:
        """How many of the next `count` entries of the text one step reads, so that its mask stays small."""
        ...

    def run(
        self, name: str, tokens: Sequence[int], states_LF: Tensor | None = None, sight: Sight | None = None
    ) -> Tensor:
        """Results [L or 1, W] of step `name` for entries: the newest nodes, or, without a tree, those after `length`.

        They are written, but do not count: whoever keeps them raises `length`. `sight`: in place of the network's.
        """
        ...

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Add nodes to the tree, see `Session.extend`; the next step reads them."""
        ...

    def forget(self) -> None:
        """Drop the tree."""
        ...

    def rollback(self, length: int) -> None:
        """Drop the tree, and all but the first `length` entries."""
        ...


class TextEntries:
    """What a draft reads of one text, over a session of captured steps or of the modules."""

    session: EntrySession

    @property
    def length(self) -> int:
        """Entries of the text; drafted ones do not count."""
        return self.session.length

    def rollback(self, length: int) -> None:
        """Drop what is drafted, and all but the first `length` entries."""
        self.session.rollback(length)
