"""The reads that a sequence requests from models, as data: a driver answers them singly, or for a batch at once.

A generator yields a `Read` when it needs a model, and receives the logits. It does not depend on how many other
sequences there are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from specbench.models.base import Session, Tokens

T = TypeVar("T")


class Read(NamedTuple):
    """`session` is to read `tokens`; the answer is what `Session.extend` returns."""

    session: Session
    tokens: Tokens
    parents: Sequence[int] | None = None


class ReadsThrough(ABC):
    """A session that leaves its reads to another, which may be a row of a batch."""

    session: Session

    @abstractmethod
    def through(self, tokens: Tokens, parents: Sequence[int] | None = None) -> tuple[Read, Callable[[Tensor], Tensor]]:
        """What `session` must read for `tokens`, and what makes of its logits those that `extend` returns."""


Reading = Generator[Read, Tensor, T]


def answered(reading: Generator[Any, Any, T]) -> T:
    """The result of `reading`, each of its reads answered by the session itself."""
    answer = None
    while True:
        try:
            session, tokens, parents = reading.send(answer)
        except StopIteration as over:
            result: T = over.value
            return result
        answer = session.extend(tokens, parents)
