"""Tables and figures by the names that a user gives."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from specbench.errors import UserError, closest_first

T = TypeVar("T")


def selected(names: Sequence[str], among: Mapping[str, T], what: str) -> list[T]:
    """The values of `among` that `names` lists, or all of them for an empty list.

    `what` is the word for a value in errors.

    Raises:
        UserError: a name does not exist.
    """
    for name in names:
        if name not in among:
            raise UserError(f"{name}: no such {what}; choose from {', '.join(closest_first(name, among))}")
    return [among[name] for name in names or among]
