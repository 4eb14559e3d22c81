"""Drafts, rules, tasks and targets of other packages, found by entry points (docs/extending.md).

An entry point's name is the name to pick. Names are read from the metadata of installed packages; the object of an
entry point is imported when it is needed.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from specbench.errors import UserError, error_line

Group = Literal["drafts", "rules", "tasks", "targets"]


@cache
def extensions(group: Group) -> dict[str, EntryPoint]:
    """The entry points of `specbench.GROUP`, by name. Raises UserError if two packages add the same name."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=f"specbench.{group}"):
        before = found.setdefault(entry.name, entry)
        if before.value != entry.value:
            raise UserError(f"specbench.{group}: two packages add {entry.name} ({before.value} and {entry.value})")
    return found


def loaded(group: Group, name: str) -> Any:
    """The object of the entry point `name`. Raises UserError if it cannot be imported."""
    entry = extensions(group)[name]
    try:
        return entry.load()
    except Exception as error:  # whatever another package raises when it is imported
        package = entry.dist.name if entry.dist is not None else entry.module
        raise UserError(
            f"specbench.{group}: {name} of {package} cannot be loaded ({error_line(error)}); fix or uninstall it"
        ) from error
