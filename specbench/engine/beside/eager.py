"""A network beside the target as it is: its modules, over caches that grow.

Shapes: L new entries, C slots, F numbers of a state that an entry joins, W numbers that a step returns, H heads.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specbench.engine.beside.declared import Beside, ByDistance, Entries, Source, States
from specbench.engine.buffers import Buffers
from specbench.engine.capture.static_sessions import tokens_at_once
from specbench.engine.layout import Layout, OpenTree, Sight, together
from specbench.engine.operations import kernels

FIRST_CAPACITY = 64  # slots of a cache


class LayerCache:
    """Keys and values of one sequence in some decoder layers; its slots double when they do not suffice."""

    def __init__(self, shapes: Sequence[tuple[int, int]], weight: Tensor, scale: float = 1.0) -> None:
        """`shapes`: (heads, channels) of keys and values, layer by layer. `weight`: of a layer. `scale`: of scores."""
        # As elsewhere: on CPU attention over bf16 is slower than over fp32, which is also the more exact.
        self.dtype = torch.promote_types(weight.dtype, torch.float32) if weight.device.type == "cpu" else weight.dtype
        self._device, self._shapes, self._scale = weight.device, list(shapes), scale
        self._buffers = self._zeros(FIRST_CAPACITY)

    @property
    def slots(self) -> int:
        return self._buffers.slots

    def reserve(self, needed: int) -> bool:
        """Make room for `needed` entries. Whether there are more slots than before."""
        if needed <= self.slots:
            return False
        old, self._buffers = self._buffers, self._zeros(1 << (needed - 1).bit_length())
        self._buffers.copy_slots(old, old.slots)
        return True

    def first(self, end: int) -> list[Tensor]:
        """Keys and values of the first `end` slots, layer by layer."""
        return [buffer[:, :, :end] for buffer in self._buffers.layers]

    def attend(self, layer: int, end: int, bias: Tensor | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of the newest entries, after writing their keys and values to the slots before `end`.

        `bias` [1, 1 or H, L, end] is added to the scores.
        """
        buffers = self._buffers.pair(layer)
        for buffer, states in zip(buffers, (key, value), strict=True):
            buffer[:, :, end - states.shape[2] : end] = states
        keys, values = (buffer[:, :, :end] for buffer in buffers)
        return kernels.attend(query, keys, values, bias, self._scale)

    def _zeros(self, slots: int) -> Buffers:
        return Buffers.zeros(self._shapes, slots, self.dtype, self._device)


class EagerEntries:
    """An `EntrySession` of modules as they are."""

    def __init__(self, beside: Beside, sources: Callable[[], Sequence[States]]) -> None:
        """`sources` returns the keys and values of the source, layer by layer."""
        self.beside, self._sources, self.length, self._tree = beside, sources, 0, OpenTree()
        self._cache = LayerCache(beside.caches, beside.weight)
        self._grown()

    @property
    def nodes(self) -> int:
        return len(self._tree)

    def at_once(self, count: int) -> int:
        return tokens_at_once(self.length + count)

    def run(
        self, name: str, tokens: Sequence[int], states_LF: Tensor | None = None, sight: Sight | None = None
    ) -> Tensor:
        count, sight = len(tokens), sight or self.beside.sight
        end = self.length + (self.nodes or count)
        self.reserve(end)
        layout = self._tree.layout(self.length, count, self._numbers_1C[:, :end])
        if sight is not None:
            layout = sight(layout, self.length)
        sees_all = sight is together or (count == 1 and self._tree.is_chain)
        return self.beside.steps[name].run(self.entries(tokens, states_LF, layout, not sees_all))[0]

    def entries(self, tokens: Sequence[int], states_LF: Tensor | None, layout: Layout, hides: bool) -> Entries:
        """Entries of any arrangement over the slots of `layout`."""
        return Entries(
            torch.tensor([tokens], device=self.beside.weight.device),
            None if states_LF is None else states_LF.unsqueeze(0),
            layout.new_positions_BL,
            [Source(*states) for states in self._sources()],
            layout,
            self._cache.first(layout.positions_BC.shape[1]),
            hides,
            self._near,
            kernels.write,
            kernels.attend,
        )

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self._tree.grow(tokens, parents)

    def forget(self) -> None:
        self._tree.close()

    def rollback(self, length: int) -> None:
        self.forget()
        self.length = min(self.length, max(0, length))

    def reserve(self, needed: int) -> None:
        """Make room for so many entries."""
        if self._cache.reserve(needed):
            self._grown()

    def _grown(self) -> None:
        self._numbers_1C = torch.arange(self._cache.slots, device=self.beside.weight.device).unsqueeze(0)
        self._by_slot: dict[ByDistance, Tensor | None] = {}  # biases by distance, computed once

    def _near(self, by_distance: ByDistance) -> Tensor | None:
        if by_distance not in self._by_slot:
            self._by_slot[by_distance] = by_distance(self._numbers_1C[0])
        return self._by_slot[by_distance]
