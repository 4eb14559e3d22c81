"""Preallocated caches: keys and values of all layers, with room for a number of slots, lent to sessions by a pool.

Shapes: N tensors of one shape, B rows, K key heads, C slots, D channels of a head.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST_STACKED = 2048  # slots of buffers that are views of one stack
CACHED_BYTES = 64 * 2**20  # masks and position biases that are cached between steps
# Those of trees: shapes that are fixed for a run come again at each length, shapes that follow the text never.
CACHED_OF_TREES = 16 * 2**20


@dataclass(frozen=True)
class Buffers:
    """Keys and values of each layer in turn, [B, K, C, D] each.

    Buffers of one shape are views of one stack, so that all layers are moved at once. Each large buffer in host memory
    is a stack by itself, so that they can grow one after another.
    """

    layers: list[Tensor]
    stacks: list[Tensor]  # [N, B, K, C, D]

    @staticmethod
    def zeros(
        shapes: list[tuple[int, int]], slots: int, dtype: torch.dtype, device: torch.device, rows: int = 1
    ) -> "Buffers":
        """`rows` rows of `slots` slots, for these (heads, channels)."""
        if slots > MOST_STACKED and device.type == "cpu":
            return Buffers._alone(
                [torch.zeros(1, rows, heads, slots, width, dtype=dtype, device=device) for heads, width in shapes]
            )
        stacks = {
            shape: torch.zeros(number, rows, shape[0], slots, shape[1], dtype=dtype, device=device)
            for shape, number in Counter(shapes).items()
        }
        views = {shape: iter(stack.unbind()) for shape, stack in stacks.items()}
        return Buffers([next(views[shape]) for shape in shapes], list(stacks.values()))

    @staticmethod
    def _alone(stacks: list[Tensor]) -> "Buffers":
        """Buffers that are stacks by themselves."""
        return Buffers([stack[0] for stack in stacks], stacks)

    def grown(self, slots: int, count: int) -> "Buffers":
        """Buffers with room for `slots` that start with the first `count` slots of these, which are empty afterwards.

        Each buffer is freed when it is copied, so that memory never holds all of them twice.
        """
        stacks, count = [], min(count, self.slots)
        for place, old in enumerate(self.layers):
            new = old.new_zeros(1, *old.shape[:-2], slots, old.shape[-1])
            new[0, ..., :count, :] = old[..., :count, :]
            stacks.append(new)
            self.layers[place] = new.new_empty(0)
            if len(self.stacks) == len(self.layers):
                self.stacks[place] = new.new_empty(0)
        return Buffers._alone(stacks)

    @property
    def slots(self) -> int:
        return self.layers[0].shape[2] if self.layers else 0

    def pair(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer; -1 is the last."""
        layer %= len(self.layers) // 2
        return self.layers[2 * layer], self.layers[2 * layer + 1]

    def first(self, tensors: int) -> "Buffers":
        """The first `tensors` of the layers' keys and values."""
        if len(self.stacks) == len(self.layers):
            return Buffers(self.layers[:tensors], self.stacks[:tensors])
        shared = Counter(layer.shape for layer in self.layers[:tensors])
        return Buffers(self.layers[:tensors], [stack[: shared[stack.shape[1:]]] for stack in self.stacks])

    def rows(self, first: int, stop: int) -> "Buffers":
        """Some of the rows."""
        return Buffers([layer[first:stop] for layer in self.layers], [stack[:, first:stop] for stack in self.stacks])

    def copy_row(self, row: int, to: int) -> None:
        """Copy all that is in a row to another."""
        for stack in self.stacks:
            stack[:, to] = stack[:, row]

    def copy_slots(self, others: "Buffers", count: int) -> None:
        """Take over the first `count` slots of `others`, or as many as these have."""
        count = min(count, others.slots)
        for mine, theirs in self._beside(others):
            mine[..., :count, :] = theirs[..., :count, :]

    def beginning(self, count: int) -> "Buffers":
        """A copy of the first `count` slots, as buffers of so many."""
        shapes = [(layer.shape[1], layer.shape[-1]) for layer in self.layers]
        made = Buffers.zeros(shapes, count, self.layers[0].dtype, self.layers[0].device)
        made.copy_slots(self, count)
        return made

    def copy_range(self, others: "Buffers", first: int, stop: int, to: int) -> None:
        """Copy the slots `first` to `stop` - 1 of `others` to those from `to` on."""
        for mine, theirs in self._beside(others):
            mine[..., to : to + stop - first, :] = theirs[..., first:stop, :]

    def _beside(self, others: "Buffers") -> Iterator[tuple[Tensor, Tensor]]:
        """Tensors of these and the same of `others`, in as few as both have."""
        stacked = len(self.stacks) == len(others.stacks)
        return zip(*((one.stacks if stacked else one.layers) for one in (self, others)), strict=True)

    def move_slots(self, slots: list[int], start: int) -> None:
        """Copy the content of `slots` to the slots from `start` on; everything is read before anything is written."""
        while slots and slots[0] == start:
            slots, start = slots[1:], start + 1
        if not slots:
            return
        for stack in self.stacks:
            index = torch.tensor(slots, device=stack.device)
            stack[..., start : start + len(slots), :] = stack.index_select(-2, index)


class BufferPool:
    """Buffers that no session uses at the moment, by kind and number of slots."""

    def __init__(self, shapes: dict[str, list[tuple[int, int]]], dtype: torch.dtype, device: torch.device) -> None:
        self._shapes, self._dtype, self._device = shapes, dtype, device
        self._free: dict[tuple[str, int], list[Buffers]] = {}

    def take(self, kind: str, slots: int) -> Buffers:
        """Buffers for `kind` ('self' or 'cross') attention. What they hold is finite, and stale."""
        free = self._free.get((kind, slots))
        if not free and slots > MOST_STACKED:  # large buffers of other sizes would fill the memory
            for other in [one for one in self._free if one[0] == kind and one[1] > MOST_STACKED]:
                del self._free[other]
        return free.pop() if free else Buffers.zeros(self._shapes[kind], slots, self._dtype, self._device)

    @property
    def free_bytes(self) -> int:
        """The bytes of all that no session uses."""
        return sum(size_of(tuple(one.stacks)) for free in self._free.values() for one in free)

    def give_back(self, held: dict[str, Buffers]) -> None:
        for kind, buffers in held.items():
            self._free.setdefault((kind, buffers.slots), []).append(buffers)


class TensorCache:
    """Tensors that depend only on a few numbers, such as (step, length, tokens, capacity), and are never changed.

    Beyond `most` bytes the oldest are dropped.
    """

    def __init__(self, most: int = CACHED_BYTES) -> None:
        self.most = most
        self._cached: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}
        self._bytes = 0

    def get(self, key: tuple[Any, ...]) -> tuple[Tensor, ...] | None:
        return self._cached.get(key)

    def once(self, key: tuple[Any, ...], compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The tensors cached under `key`, computed if they are not there."""
        found = self._cached.get(key)
        return self.put(key, compute()) if found is None else found

    def clear(self) -> None:
        self._cached.clear()
        self._bytes = 0

    def put(self, key: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Cache `tensors`, and return them as `get` will."""
        tensors = tuple(tensor.contiguous() for tensor in tensors)
        self._cached[key] = tensors
        self._bytes += size_of(tensors)
        while self._bytes > self.most and len(self._cached) > 1:
            self._bytes -= size_of(self._cached.pop(next(iter(self._cached))))
        return tensors


def size_of(tensors: tuple[Tensor, ...]) -> int:
    """Their bytes."""
    return sum(tensor.nbytes for tensor in tensors)
