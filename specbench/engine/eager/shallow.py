"""The first layers of a session's network, or a part of its sublayers, reading ahead over that session's own cache.

It depends on no cache: the whole session implements reading ahead and dropping it.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specbench.engine.session import Part, Tokens


class Reusable:
    """What the first layers made of the first tokens that they have read ahead: logits with states after them."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._rows: list[Tensor] = []

    def add(self, ahead: int, tokens: Tokens, rows_LW: Tensor) -> None:
        """Hold the rows of `tokens`, read when the first layers were `ahead` by so many tokens."""
        if ahead == len(self._tokens) and not isinstance(tokens, Tensor):
            self._tokens += tokens
            self._rows += [rows_LW] if len(tokens) == 1 else rows_LW.split(1)

    def of(self, tokens: Tokens, ahead: int) -> list[Tensor] | None:
        """The rows [1, W] of the first of `tokens`, one each; None unless these are all the `ahead` tokens."""
        known = len(self._tokens)
        if not 0 < known == ahead <= len(tokens) or isinstance(tokens, Tensor) or list(tokens[:known]) != self._tokens:
            return None
        return list(self._rows)

    def crop(self, tokens: int) -> None:
        """Drop the last `tokens`."""
        kept = max(0, len(self._tokens) - tokens)
        del self._tokens[kept:], self._rows[kept:]

    def clear(self) -> None:
        self._tokens.clear()
        self._rows.clear()


class Whole(Protocol):
    """A session whose first layers may be `ahead` of the others by so many tokens, and by the nodes of a tree.

    The next reading of all layers drops that. Below 0 they read again tokens that all layers have read, as in teacher
    forcing.
    """

    length: int
    ahead: int
    ahead_part: Part | None  # which layers those are
    reusable: Reusable  # what of it need not be computed again

    def level(self) -> None:
        """Forget what the first layers have read alone."""
        ...

    def crop_ahead(self, tokens: int) -> None:
        """Forget the last `tokens` of what the first layers have read alone, and their tree."""
        ...

    def read_ahead(self, part: Part, tokens: Tokens, parents: Sequence[int] | None, reuse: bool) -> Tensor:
        """Logits [L, V] of these first layers, final norm and head, reading on in these layers' caches.

        With `reuse` the states at the exit follow the logits in each row, and rows of a chain are held as `reusable`.
        """
        ...

    def select_ahead(self, part: Part, path: Sequence[int]) -> None:
        """Append the nodes of `path` to what the first layers have read alone, and forget the rest of their tree."""
        ...


class ShallowSession:
    """Reads ahead of the whole session, which drops it and reads the tokens again in all layers. One at a time."""

    def __init__(self, whole: Whole, part: Part, reuse: bool = False) -> None:
        self.whole = whole
        self.part = part
        self.reuse = reuse

    @property
    def length(self) -> int:
        return self.whole.length + self.whole.ahead

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        self._take_over()
        return self.whole.read_ahead(self.part, tokens, parents, self.reuse)

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
