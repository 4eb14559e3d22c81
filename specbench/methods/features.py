"""The states of a text that a target's session hands over, kept for a draft that reads them.

Shapes: L tokens, F numbers of a feature.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.draft import DraftSession
from specbench.engine.session import Session


def columns_of(own: Sequence[int], taps: Sequence[int], width: int) -> list[int] | None:
    """The columns of the states tapped at depths `taps`, `width` each, that are of the depths `own`; None for all."""
    if tuple(own) == tuple(taps):
        return None
    places = [taps.index(depth) for depth in own]
    return [column for place in places for column in range(place * width, (place + 1) * width)]


class Features:
    """The target's features of the first tokens of a text: what follows a rollback is read from here again."""

    def __init__(self, session: Session, tapped: bool, columns: Sequence[int] | None) -> None:
        """Gather tapped states, or the head's input if there are none; `columns`: which of their numbers, None for all.

        Those of the prompt are kept now, before the target reads on.
        """
        self._session, self._tapped, self._columns = session, tapped, columns
        self._rows: list[Tensor] = []  # [1, F] a token
        self._gather(session.length)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, tokens: Sequence[int]) -> None:
        """Keep the features of `tokens`. The session now reads those it has not read, which replaces its last read."""
        if self._session.length < len(tokens):
            self._gather(self._session.length)
            self._session.extend(tokens[self._session.length :])
        self._gather(len(tokens))

    def of(self, first: int, stop: int) -> Tensor:
        """Features [L, F] of the tokens from `first` to `stop` - 1."""
        return torch.cat(self._rows[first:stop])

    def drop(self, length: int) -> None:
        """Keep only the features of the first `length` tokens."""
        del self._rows[length:]

    def _gather(self, count: int) -> None:
        known = len(self._rows)
        if known < count:
            states_of = self._session.tapped if self._tapped else self._session.states
            states_LF = states_of(known, count)
            assert states_LF is not None, "the target has read this text in other parts than it is drafted for in"
            self._rows += (states_LF if self._columns is None else states_LF[:, self._columns]).split(1)


class ReadsFeatures(DraftSession):
    """The part of a draft session that reads the target's features of a text, which it keeps as `_features`."""

    _features: Features

    def follow(self, tokens: Sequence[int]) -> None:
        """Keep the features of all but the newest token."""
        self._features.read(tokens[:-1])

    def select(self, path: Sequence[int]) -> None:
        """Nothing: accepted tokens are read with the target's features."""
