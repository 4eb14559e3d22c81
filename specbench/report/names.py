"""What a user names, found among what there is."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from specbench.errors import UserError

T = TypeVar("T")


def picked(names: Sequence[str], among: Mapping[str, T], what: str) -> list[T]:
    """The values of `among` that are named, all of them where none is. `what` is the word for one of them."""
    for name in names:
        if name not in among:
            raise UserError(f"{name}: no such {what}; choose from {', '.join(among)}")
    return [among[name] for name in names or among]
