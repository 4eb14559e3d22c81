"""The first layers of a session's network, or some of their sublayers, reading on alone over that session's own cache
and encoded source.

It depends on no cache: the whole session implements reading ahead and forgetting.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specbench.models.base import Tokens
from specbench.models.part import Part


class Whole(Protocol):
    """A session whose first layers may be `ahead` of the others by so many tokens, and by the nodes of a tree; the next
    reading of all layers takes that back. Below 0 they read again what all have read, as teacher forcing does."""

    length: int
    ahead: int
    ahead_part: Part | None  # which layers those are

    def level(self) -> None:
        """Forget what the first layers have read alone."""
        ...

    def crop_ahead(self, tokens: int) -> None:
        """Forget the last `tokens` of what the first layers have read alone, and their tree."""
        ...

    def read_ahead(self, part: Part, tokens: Tokens, parents: Sequence[int] | None) -> Tensor:
        """Logits [L, V] of these first layers, final norm and head, reading on in these layers' caches."""
        ...

    def select_ahead(self, part: Part, path: Sequence[int]) -> None:
        """Append the nodes of `path` to what the first layers have read alone, and forget the rest of their tree."""
        ...


class ShallowSession:
    """Has read what the whole session has read, and then what it reads itself, which the whole session forgets and
    reads again in all layers. One part at a time."""

    def __init__(self, whole: Whole, part: Part) -> None:
        self.whole = whole
        self.part = part

    @property
    def length(self) -> int:
        return self.whole.length + self.whole.ahead

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        self._take_over()
        return self.whole.read_ahead(self.part, tokens, parents)

    def select(self, path: Sequence[int]) -> None:
        self._take_over()
        self.whole.select_ahead(self.part, path)

    def rollback(self, length: int) -> None:
        self._take_over()
        self.whole.crop_ahead(max(0, self.length - length))

    def _take_over(self) -> None:
        if self.whole.ahead_part != self.part:
            self.whole.level()
            self.whole.ahead_part = self.part
