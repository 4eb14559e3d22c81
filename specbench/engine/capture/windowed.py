"""Windowed sessions (`engine.window`) over the buffers of a captured step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.engine.capture.static_sessions import StaticSession
from specbench.engine.eager.sessions import NetworkSession
from specbench.engine.layout import Layout
from specbench.engine.session import Prompt, Tokens
from specbench.engine.window import Window, Windowed


class WindowedStatic(Windowed, StaticSession):
    """Over buffers of a fixed size."""

    def __init__(self, model: Any, prompt: Prompt, window: Window) -> None:
        self.open(window)
        super().__init__(model, prompt)

    def reserve(self, needed: int) -> None:
        if "self" not in self._held:
            self._capacity = self.window.slots
            self._held["self"] = self.model.pool.take("self", self._capacity)
            self._collect()

    def _make_room(self, needed: int) -> None:
        self.room_for(needed - self.length)

    def _place(self, tokens: Tokens, parents: Sequence[int] | None) -> None:
        super()._place(tokens, parents)
        self.note(tokens, parents)

    def _run(self, tokens: Tokens, parents: Sequence[int] | None = None, last_row: bool = False) -> Tensor:
        first = 0
        found = []
        for block in self.blocks(tokens, parents):
            own = None if parents is None else parents[first : (first := first + len(block))]
            found.append(super()._run(block, own, last_row))
        return found[-1] if last_row or len(found) == 1 else torch.cat(found)

    def _layout(self, count: int) -> Layout:
        numbers_1C = self.model.numbers(self._capacity)
        slots = self._tree.layout(self.length - self.dropped, count, numbers_1C)
        return self.window.over(slots, self.dropped, numbers_1C)

    def _looked_up(
        self, what: tuple[object, ...], count: int, compute: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        return super()._looked_up((*what, self.window, self.dropped), count, compute)

    def again(self, tokens: list[int]) -> None:
        if tokens:
            self.extend(tokens)

    def shorten(self, length: int) -> None:
        StaticSession.rollback(self, length)

    @torch.inference_mode()
    def move_up(self, first: int) -> None:
        self._held["self"].move_slots(list(range(first, self._capacity)), self.window.sinks)

    @torch.inference_mode()
    def copy(self, whole: NetworkSession, first: int, stop: int, to: int) -> None:
        assert isinstance(whole, StaticSession)
        self._held["self"].copy_range(whole._held["self"], first, stop, to)
