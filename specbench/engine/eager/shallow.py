"""The first layers of a session's network, or a part of its sublayers, reading ahead over that session's own cache.

It depends on no cache: the whole session implements reading ahead and dropping it.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specbench.engine.session import Part, Tokens


class Whole(Protocol):
    """A session whose first layers may be `ahead` of the others by so many tokens, and by the nodes of a tree.

    The next reading of all layers drops that. Below 0 they read again tokens that all layers have read, as in teacher
    forcing.
    """

    length: int
    ahead: int
    ahead_part: Part | None  # which layers those are

    def drop_ahead(self) -> None:
        """Drop the tokens that only the first layers have read, so that all layers have read equally many."""
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
    """Reads ahead of the whole session, which drops it and reads the tokens again in all layers. One at a time."""

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
            self.whole.drop_ahead()
            self.whole.ahead_part = self.part
