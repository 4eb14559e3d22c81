"""Sessions that attend to the first tokens of a text and to the newest, whose caches do not grow with it.

A token attends to the first `sinks` tokens of the text, and to the last `tokens` up to itself (StreamingLLM, Xiao et
al. 2024, section 3.2). Keys and values take few slots: first the sinks, then the newest tokens one after another. When
these are full, the oldest outside the window are dropped and the others move up. Positions still count from the
beginning of the text, as when TriForce (Sun et al. 2024) and MagicDec (Chen et al. 2024) draft from a target's cache:
what a token attends to, and so q, is a function of only the text, however it was read.

A session may also take over the keys and values of a session of the same model that has read everything (`take`), so
that only the tokens after those are its own.

Shapes: L new tokens, C slots.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.engine.beginnings import Beginnings
from specbench.engine.eager.network_parts import Part
from specbench.engine.eager.sessions import DecoderOnlySession, NetworkSession
from specbench.engine.layout import Layout, OpenTree
from specbench.engine.session import Prompt, Tokens
from specbench.errors import UserError

ROLLED_BACK = 65  # tokens before the window that a rollback can return to: a proposal and one more
BLOCK = 128  # tokens that are read at once, and nodes of a tree


@dataclass(frozen=True)
class Window:
    """The newest `tokens` and the first `sinks`."""

    tokens: int
    sinks: int

    @property
    def slots(self) -> int:
        """Slots of a session's cache."""
        return self.sinks + self.tokens + ROLLED_BACK + BLOCK

    def over(self, slots: Layout, dropped: int, numbers_1C: Tensor) -> Layout:
        """`slots`, a layout that counts slots, for a text of which the `dropped` tokens after the sinks have none."""
        are_sinks_1C = numbers_1C < self.sinks
        positions_1C = torch.where(are_sinks_1C, slots.positions_BC, slots.positions_BC + dropped)
        own_1L1 = positions_1C.gather(1, slots.slots_BL).unsqueeze(-1)
        seen_1LC = are_sinks_1C.unsqueeze(1) | (positions_1C.unsqueeze(1) > own_1L1 - self.tokens)
        return Layout(slots.slots_BL, positions_1C, slots.visible_BLC & seen_1LC)


class Windowed(NetworkSession):
    """Shared parts of windowed sessions of all engines."""

    window: Window
    dropped: int  # tokens after the sinks that have no slots
    taken: int | None  # tokens whose keys and values are another session's; None: it reads all by itself
    text: list[int]  # the tokens that it read by itself, to read them again
    nodes: list[int]  # of the tree

    def open(self, window: Window) -> None:
        """Begin with nothing read."""
        self.window, self.dropped, self.taken, self.text, self.nodes = window, 0, None, [], []

    def blocks(self, tokens: Tokens, parents: Sequence[int] | None) -> Iterator[Tokens]:
        """`tokens` in parts that are read at once."""
        if parents is not None and len(self._tree) + len(tokens) > BLOCK:
            raise UserError(f"tree: a draft with a window reads trees of at most {BLOCK} nodes; give a smaller tree")
        return (tokens[first : first + BLOCK] for first in range(0, len(tokens), BLOCK))

    def room_for(self, count: int) -> None:
        """Drop slots if `count` tokens after the sequence, or nodes of its tree, would find none."""
        filled = self.length - self.dropped
        if filled + count > self.window.slots:
            kept = min(self.window.tokens + ROLLED_BACK, filled - self.window.sinks)
            self.move_up(filled - kept)
            self.dropped += filled - self.window.sinks - kept

    def note(self, tokens: Tokens, parents: Sequence[int] | None) -> None:
        """Record the tokens that are read."""
        read = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        if parents is not None:
            self.nodes += read
        elif self.taken is None:
            self.text[self.length :] = read

    def select(self, path: Sequence[int]) -> None:
        self.text[self.length :] = [self.nodes[node] for node in path]
        self.nodes.clear()
        super().select(path)

    def _keep_nodes(self, length: int, tree: OpenTree, path: Sequence[int], part: Part | None = None) -> None:
        super()._keep_nodes(length - self.dropped, tree, path, part)  # type: ignore[safe-super]

    def rollback(self, length: int) -> None:
        self.nodes.clear()
        end = self.window.sinks + self.dropped  # tokens before it have no slots, but the sinks
        lost = self.dropped > 0 and length < self.length and length - self.window.tokens + 1 < end
        if self.taken is not None:
            self.taken = min(self.taken, length)
        self.shorten(length)
        if lost:
            self.forget()
            if self.taken is None:
                self.again(self.text[:length])

    def forget(self) -> None:
        """Drop everything: slots are written again from the first."""
        self.shorten(0)
        self.dropped, self.taken = 0, None if self.taken is None else 0

    def take(self, whole: NetworkSession) -> None:
        """Go to where `whole`, of the same model, is, with its keys and values as far as later tokens see them."""
        self.rollback(min(self.length, self.taken or 0, whole.length))
        length, sinks = whole.length, min(self.window.sinks, whole.length)
        if length - self.length > BLOCK:
            self.forget()
            first = max(sinks, length - self.window.tokens - ROLLED_BACK)
            self.copy(whole, 0, sinks, 0)
            self.copy(whole, first, length, sinks)
            self.dropped = first - sinks
        else:
            self.room_for(length - self.length)
            self.copy(whole, self.length, length, self.length - self.dropped)
        self.length = self.taken = length

    @staticmethod
    def copies_from(model: Any) -> Beginnings | None:
        return None  # slots are not the text's

    def again(self, tokens: list[int]) -> None:
        """Read `tokens`."""
        if tokens:
            self.extend(tokens)

    @abstractmethod
    def shorten(self, length: int) -> None:
        """Forget all but the first `length` tokens, and the tree."""

    @abstractmethod
    def move_up(self, first: int) -> None:
        """Move the slots from `first` on to those after the sinks."""

    @abstractmethod
    def copy(self, whole: NetworkSession, first: int, stop: int, to: int) -> None:
        """Copy keys and values of the tokens `first` to `stop` - 1 of `whole` to the slots from `to` on."""


class WindowedEager(Windowed, DecoderOnlySession):
    """Over a cache of `transformers`, which it cuts."""

    def __init__(self, model: Any, prompt: Prompt, window: Window) -> None:
        self.open(window)
        super().__init__(model, prompt)

    def read_first(self, tokens: Sequence[int]) -> None:
        self.again(list(tokens))

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        if not len(tokens):
            return self.no_logits()
        found = []
        for block in self.blocks(tokens, parents):
            self.room_for(len(self._tree) + len(block))
            self.note(block, parents)
            found.append(self._read(block, parents))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _layout(self, tree: OpenTree, length: int, count: int) -> Layout:
        slots = length - self.dropped
        numbers_1C = torch.arange(slots + (len(tree) or count), device=self.model.device).unsqueeze(0)
        return self.window.over(tree.layout(slots, count, numbers_1C), self.dropped, numbers_1C)

    def shorten(self, length: int) -> None:
        if length < self.length or self._tree:
            DecoderOnlySession.rollback(self, max(length, self.dropped))
            self.length = min(self.length, length)

    def move_up(self, first: int) -> None:
        for layer in self._caches(None):
            for name in ("keys", "values"):
                states = getattr(layer, name)
                setattr(layer, name, torch.cat([states[:, :, : self.window.sinks], states[:, :, first:]], 2))

    @torch.inference_mode()
    def copy(self, whole: NetworkSession, first: int, stop: int, to: int) -> None:
        assert isinstance(whole, DecoderOnlySession)
        for number, layer in enumerate(whole._caches(None) if first < stop else ()):
            self._cache.update(layer.keys[:, :, first:stop], layer.values[:, :, first:stop], number)
