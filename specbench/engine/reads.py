"""The reads that a sequence requests from models.

A generator yields a `Read` when it needs a model, and receives the logits. A driver answers reads singly, or for a
batch at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from specbench.engine.session import Session, Tokens

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
        """Tokens that `session` must read for `tokens`, and a function from its logits to the result of `extend`."""


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
