"""Layers of a session's cache, which hold what they read, drop their last tokens, and keep selected nodes of a tree.

Attention holds keys and values of each token, which are cut and gathered. A recurrent layer (short convolution,
state-space, gated delta rule) has one state that each token replaces, and no inverse. It holds the state after each of
its last tokens, so that dropping tokens is choosing a state, and nodes of a tree are read from their parents' states.

The other way is to hold the state before a pass, and after a rejection to read the accepted tokens again. On a CPU it
is slower (random shapes of 8 layers, Qwen 3-Next, Mamba 2, Bamba and LFM 2): reading 1 to 4 tokens again costs 1 to 3
steps per pass, while the states of 2 to 6 tokens, computed one after another, take no longer than its own scan, which
fills up a chunk of 64. Holding costs no time, since each token makes a new state anyway. It costs memory for the states
of a pass and of HELD tokens before it. Trees need states by node in any case.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from specbench.engine.layout import OpenTree
from specbench.errors import UserError

SPARE = 32  # tokens, at least, for which a move makes room
HELD = 32  # tokens before a pass that can still be dropped without reading the text again


class Arrangement(NamedTuple):
    """The new tokens of one row: `tokens` after its sequence, or the last `tokens` nodes of a tree after it."""

    tokens: int
    parents: tuple[int, ...] = ()  # of all nodes, see `OpenTree`; empty if tokens follow one another
    earlier: int = 0  # nodes that were read before, as a chain or as a tree

    @staticmethod
    def of(tree: OpenTree, count: int) -> "Arrangement":
        """The newest `count` nodes of `tree`, or tokens of the sequence if it has none."""
        return Arrangement(count, () if tree.is_chain else tree.parents, max(0, len(tree) - count))

    def before(self, held: int) -> list[int]:
        """For each new token the number of the state that it is read from; state n is after the n-th held token."""
        if not self.parents:
            return list(range(held, held + self.tokens))
        root = held - self.earlier
        return [root + 1 + parent for parent in self.parents[self.earlier :]]

    def windows(self, width: int, before_first: int) -> list[list[int]]:
        """For each new node the places of itself and what it follows, `width` in all; node 0 is at `before_first`."""
        found = []
        for node in range(self.earlier, len(self.parents)):
            path = [node]
            while len(path) < width:  # a token of the sequence is a negative node, its parent the one before it
                path.append(self.parents[path[-1]] if path[-1] >= 0 else path[-1] - 1)
            found.append([before_first + place for place in reversed(path)])
        return found


class KeyValueLayer(DynamicLayer):
    """Keys and values of every token that an attention has read, whatever window it attends to.

    New tokens are written into room after the last, of which there is more with each move: appending would copy all.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self._rooms: dict[str, Tensor] = {}
            found: tuple[Tensor, Tensor] = super().update(key_states, value_states)
            return found
        return self._append("keys", key_states), self._append("values", value_states)

    def _append(self, name: str, new: Tensor) -> Tensor:
        held: Tensor = getattr(self, name)
        room, length = self._rooms.get(name), held.shape[-2]
        end = length + new.shape[-2]
        if room is None or room.data_ptr() != held.data_ptr() or room.shape[-2] < end:
            room = held.new_empty(*held.shape[:-2], end + max(SPARE, end // 8), held.shape[-1])
            room[..., :length, :] = held
            self._rooms[name] = room
        room[..., length:end, :] = new
        setattr(self, name, whole := room[..., :end, :])
        return whole

    def bytes_of(self, tokens: int) -> int:
        """The bytes of so many tokens, if one has been read."""
        held: list[Tensor] = [states for states in (self.keys, self.values) if states is not None]
        return tokens * sum(states.nbytes for states in held)

    def keep(self, nodes: Sequence[int], of: int) -> None:
        """Keep the nodes of a path, in its order; the last `of` tokens are the nodes of the tree."""
        if not self.is_initialized:  # attention over another layer's keys
            return
        if list(nodes) != list(range(len(nodes))):
            assert self.keys is not None and self.values is not None
            start = self.keys.shape[-2] - of
            slots = torch.tensor(nodes, device=self.keys.device) + start
            for states in (self.keys, self.values):
                states[..., start : start + len(nodes), :] = states.index_select(-2, slots)
        DynamicLayer.crop(self, len(nodes) - of)


def new_cache() -> DynamicCache:
    """An empty cache whose layers cache all they read.

    Without a network's config: layers that attend to a window would drop what a rollback needs. Their masks hold them
    to the window all the same. With the config it would also count an encoder's layers, and break on a deeper decoder.
    """
    made = DynamicCache()
    made.layer_class_to_replicate = KeyValueLayer
    return made


class RecurrentStates:
    """One sequence's inputs of a layer's convolution, and the layer's states after its last tokens."""

    def __init__(self) -> None:
        self.held = 0  # tokens that can be dropped
        self.states: list[Tensor] = []  # before these tokens and after each; none in a layer that only convolves
        self._inputs: Tensor | None = None  # [1, D, K - 1 + held]

    @property
    def is_empty(self) -> bool:
        return self._inputs is None

    def begin(self, inputs_1DL: Tensor, width: int) -> None:
        """Hold the inputs of a first reading, without what would be needed to drop tokens of it."""
        padded = functional.pad(inputs_1DL, (width - 1, 0))
        self._inputs = padded[..., padded.shape[-1] - width + 1 :].clone()

    def windows(self, inputs_1DL: Tensor, width: int, new: Arrangement) -> Tensor:
        """Add the inputs of new tokens; what each of them is convolved from [1, D, L, K], itself last."""
        if self._inputs is None:
            self.begin(inputs_1DL[..., :0], width)
        assert self._inputs is not None
        if not new.earlier and self.held > HELD:
            self.states = self.states[-1 - HELD :]
            self._inputs, self.held = self._inputs[..., -(width - 1 + HELD) :], HELD
        together = torch.cat([self._inputs, inputs_1DL], -1)
        if new.parents:
            root = width - 1 + self.held - new.earlier
            places = new.windows(width, root)
            places += places[-1:] * (inputs_1DL.shape[-1] - new.tokens)  # a batch fills its shorter rows up
            windows = together[..., torch.tensor(places, device=inputs_1DL.device)]
        else:
            windows = together[..., self.held :].unfold(-1, width, 1)
        self._inputs = together[..., : width - 1 + self.held + new.tokens]
        self.held += new.tokens
        return windows

    def bytes_of(self, tokens: int) -> int:
        """The bytes that are held after so many tokens, at least one, if one has been read."""
        assert self._inputs is not None
        held = min(tokens, HELD)
        inputs = self._inputs.nbytes // self._inputs.shape[-1] * (self._inputs.shape[-1] + held - self.held)
        return inputs + sum(state.nbytes for state in self.states[:1]) * (held + 1)

    def crop(self, tokens: int) -> None:
        """Forget the last `tokens`."""
        if tokens > self.held:
            raise UserError(f"gamma: a recurrent layer holds the states of {self.held} tokens, not of {tokens}")
        if tokens:
            assert self._inputs is not None
            self._inputs, self.states = self._inputs[..., :-tokens], self.states[:-tokens]
            self.held -= tokens

    def keep(self, nodes: Sequence[int], of: int) -> None:
        """Keep the inputs and states of a path's nodes: `KeyValueLayer.keep`."""
        assert self._inputs is not None
        end, root = self._inputs.shape[-1] - of, self.held - of
        places = torch.tensor([*range(end), *(end + node for node in nodes)], device=self._inputs.device)
        self._inputs = self._inputs.index_select(-1, places)
        if self.states:
            self.states = self.states[: root + 1] + [self.states[root + 1 + node] for node in nodes]
        self.held = root + len(nodes)


class RecurrentLayer(LinearAttentionLayer):
    """The states of one layer for the rows of a run: one row for a session, several for a batch.

    It shows `transformers` none of them, so that a module reads any number of tokens through the same two functions,
    which `recurrence` replaces: the convolution, and the scan.
    """

    def __init__(self) -> None:
        LinearAttentionLayer.__init__(self)
        self.record_past = True
        self.rows = [RecurrentStates()]
        self.reading: Any = None

    @property
    def held(self) -> int:
        return self.rows[0].held

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        self.reading.enter(self.rows)
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        if self.reading.from_nothing:
            self.rows[0].states = [recurrent_states]
        return recurrent_states

    def bytes_of(self, tokens: int) -> int:
        return self.rows[0].bytes_of(tokens)

    def crop(self, tokens_to_remove: int) -> None:
        for row in self.rows:
            row.crop(abs(tokens_to_remove))

    def keep(self, nodes: Sequence[int], of: int) -> None:
        self.rows[0].keep(nodes, of)


class KeyValueRows(DynamicLayer):
    """Layers of several sessions in one forward pass: each caches its own new tokens, not the padding of its row."""

    def __init__(self, rows: Sequence[KeyValueLayer], new: Sequence[Arrangement], slots: int) -> None:
        super().__init__()
        self.of_sessions, self.new, self.slots = rows, new, slots

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = zip(
            *(
                row.update(key_states[at : at + 1, :, : new.tokens], value_states[at : at + 1, :, : new.tokens])
                for at, (row, new) in enumerate(zip(self.of_sessions, self.new, strict=True))
            ),
            strict=True,
        )
        return self._filled(keys), self._filled(values)

    def _filled(self, rows: Sequence[Tensor]) -> Tensor:
        return torch.cat([functional.pad(row, (0, 0, 0, self.slots - row.shape[-2])) for row in rows])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots, 0


class HybridLayer(RecurrentLayer, KeyValueLayer, LinearAttentionAndFullAttentionLayer):
    """A layer with both; masks are made for it by its last base."""

    def __init__(self) -> None:
        KeyValueLayer.__init__(self)
        RecurrentLayer.__init__(self)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        KeyValueLayer.lazy_initialization(self, *args, **kwargs)

    def bytes_of(self, tokens: int) -> int:
        return RecurrentLayer.bytes_of(self, tokens) + KeyValueLayer.bytes_of(self, tokens)

    def crop(self, tokens_to_remove: int) -> None:
        RecurrentLayer.crop(self, tokens_to_remove)
        KeyValueLayer.crop(self, tokens_to_remove)

    def keep(self, nodes: Sequence[int], of: int) -> None:
        RecurrentLayer.keep(self, nodes, of)
        KeyValueLayer.keep(self, nodes, of)


class HybridRows(RecurrentLayer, KeyValueRows, LinearAttentionAndFullAttentionLayer):
    """Hybrid layers of several sessions in one forward pass."""

    def __init__(self, rows: Sequence[HybridLayer], new: Sequence[Arrangement], slots: int) -> None:
        KeyValueRows.__init__(self, rows, new, slots)
        RecurrentLayer.__init__(self)
        self.rows = [row.rows[0] for row in rows]


def rows_of(layers: Sequence[Any], new: Sequence[Arrangement], slots: int) -> Any:
    """What `layers` hold, the same layer of several sessions, for one run that reads `new`; they have `slots` then."""
    first = layers[0]
    if isinstance(first, HybridLayer):
        return HybridRows(layers, new, slots)
    if isinstance(first, RecurrentLayer):
        made = RecurrentLayer()
        made.rows = [layer.rows[0] for layer in layers]
        return made
    return KeyValueRows(layers, new, slots) if isinstance(first, KeyValueLayer) else first
