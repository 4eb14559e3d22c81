"""Values that the sessions of a model look up once: calls, addresses of positions, and the pace of completions."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from specbench.engine.buffers import CACHED_BYTES, Buffers, size_of
from specbench.engine.native.native_run import BoundCall, Placed, Places
from specbench.engine.native.passes import Pace, Reader
from specbench.engine.native.rollout import Rollout
from specbench.engine.native.whole import WholeStep
from specbench.sampling import TokenChoice

MOST_ADDRESSES = 16384  # of looked-up positions that are held
MOST_CALLS = 512  # that are kept to copy, and sets of buffers whose calls are


@dataclass
class OfBuffers:
    """Calls that sessions over the same buffers share, one after another.

    calls: of a step over so many tokens (several for a rollout), and which of its inputs are placed.
    """

    calls: dict[tuple[int, int], tuple[list[BoundCall], list[int]]] = field(default_factory=dict)
    rollouts: dict[tuple[int, int, TokenChoice, frozenset[int]], Rollout] = field(default_factory=dict)
    readers: dict[tuple[TokenChoice, int, frozenset[int]], Reader] = field(default_factory=dict)


class Lookups:
    """Values that the sessions of a model look up once.

    places: what a step reads of the place in a text, by step, tokens and slots.
    calls: a call by step, tokens, and slots of the text and the source, and which of its inputs are placed.
    pace: of its completions.
    """

    def __init__(self) -> None:
        self._of_buffers: dict[tuple[int, ...], tuple[list[weakref.ref[Buffers]], OfBuffers]] = {}
        self._addresses: dict[int, tuple[tuple[Tensor, ...], Placed]] = {}
        self._bytes = 0
        self.places: dict[tuple[int, ...], Places] = {}
        self.calls: dict[tuple[int, ...], tuple[BoundCall, list[int]]] = {}
        self.pace = Pace()

    def clear(self) -> None:
        """Forget what depends on weights, and the calls that read it."""
        for held in (self._addresses, self.places, self._of_buffers):
            held.clear()
        self._bytes = 0

    def of_buffers(self, own: Buffers, of_source: Buffers | None, source: int) -> "OfBuffers":
        """The calls of sessions over these buffers, with a source of so many tokens."""
        key = id(own), id(of_source), source
        buffers = [own] if of_source is None else [own, of_source]
        known, found = self._of_buffers.get(key, ([], None))
        if found is None or any(one() is not other for one, other in zip(known, buffers, strict=True)):
            if len(self._of_buffers) >= MOST_CALLS:
                self._of_buffers.clear()
            found = OfBuffers()
            self._of_buffers[key] = [weakref.ref(one) for one in buffers], found
        return found

    def of(self, run: WholeStep, looked_up: tuple[Tensor, ...], numbers: Sequence[int]) -> Placed:
        """Tensors that a session has looked up, which are inputs of these numbers."""
        found = self._addresses.get(id(looked_up))
        if found is None or found[0] is not looked_up:
            # An entry holds its tensors, also once the cache that they come from has dropped them.
            if len(self._addresses) >= MOST_ADDRESSES or self._bytes + size_of(looked_up) > CACHED_BYTES:
                self.clear()
            self._bytes += size_of(looked_up)
            placed = run.placed(dict(zip(numbers, looked_up, strict=True)))
            found = self._addresses[id(looked_up)] = looked_up, placed
        return found[1]
