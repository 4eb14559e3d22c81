"""The first layers of a session's network, reading on alone over that session's own cache and encoded source.

It depends on no cache: the whole session implements reading ahead and forgetting.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specbench.models.base import Tokens


class Whole(Protocol):
    """A session whose first layers may be `ahead` of the others by so many tokens, and by the nodes of a tree; the next
    reading of all layers takes that back. Below 0 they read again what all have read, as teacher forcing does."""

    length: int
    ahead: int
    ahead_layers: int  # how many layers those are

    def level(self) -> None:
        """Forget what the first layers have read alone."""
        ...

    def crop_ahead(self, tokens: int) -> None:
        """Forget the last `tokens` of what the first layers have read alone, and their tree."""
        ...

    def read_ahead(self, layers: int, tokens: Tokens, parents: Sequence[int] | None) -> Tensor:
        """Logits [L, V] of the first `layers` layers, final norm and head, reading on in these layers' caches."""
        ...

    def select_ahead(self, layers: int, path: Sequence[int]) -> None:
        """Append the nodes of `path` to what the first layers have read alone, and forget the rest of their tree."""
        ...


class ShallowSession:
    """Has read what the whole session has read, and then what it reads itself, which the whole session forgets and
    reads again in all layers. One number of layers at a time."""

    def __init__(self, whole: Whole, layers: int) -> None:
        self.whole = whole
        self.layers = layers

    @property
    def length(self) -> int:
        return self.whole.length + self.whole.ahead

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        self._take_over()
        return self.whole.read_ahead(self.layers, tokens, parents)

    def select(self, path: Sequence[int]) -> None:
        self._take_over()
        self.whole.select_ahead(self.layers, path)

    def rollback(self, length: int) -> None:
        self._take_over()
        self.whole.crop_ahead(max(0, self.length - length))

    def _take_over(self) -> None:
        if self.whole.ahead_layers != self.layers:
            self.whole.level()
            self.whole.ahead_layers = self.layers
