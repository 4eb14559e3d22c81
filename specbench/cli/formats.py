"""Rows on stdout as a table, CSV or JSON. Everything else goes to stderr, so that a pipe reads rows only.

`terminal` is the screen of all tables for people: it shows text as it is, without markup and control characters.
"""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from specbench.errors import UserError, closest_first
from specbench.escaping import csv_cell, printable

if TYPE_CHECKING:
    from rich.console import Console

FORMATS = ("table", "csv", "json")
OutputRows = Sequence[Mapping[str, Any]]


def checked_format(form: str) -> str:
    """`form`, if it is one of FORMATS. Raises UserError."""
    if form not in FORMATS:
        raise UserError(f"--format {form}: no such format; choose from {', '.join(closest_first(form, FORMATS))}")
    return form


def aside(form: str) -> IO[str]:
    """Where a line goes that is not a row: a table may have lines around it, CSV and JSON may not."""
    return sys.stdout if form == "table" else sys.stderr


def terminal(stream: IO[str] | None = None, soft_wrap: bool = True) -> "Console":
    """A console on `stream` (unset: stdout) that shows text as it is.

    Brackets are brackets unless `print` is called with `markup=True`, and control characters are left out, so that a
    name or a completion of a record cannot colour or hide lines or move the cursor.
    """
    return _console_class()(file=stream, highlight=False, soft_wrap=soft_wrap, markup=False)


@cache
def _console_class() -> "type[Console]":
    """The class of `terminal`, made late: rich takes a while to import, and most commands print without it."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Terminal(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                # Control segments are rich's own: they draw the bar.
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return Terminal


def print_rows(
    form: str, rows: OutputRows, draw: Callable[[], object], *, document: Any = None, columns: Iterable[str] = ()
) -> None:
    """Print `rows` in `form`.

    Args:
        rows: of the table.
        form: table | csv | json.
        draw: prints the table for people.
        document: what JSON holds, where that is more than the rows.
        columns: of the CSV, those that come first, in this order, even where no row has them.
    """
    if form == "table":
        draw()
    elif form == "csv":
        _print_csv(rows, columns)
    else:
        json.dump(plain(rows if document is None else document), sys.stdout, indent=1, ensure_ascii=False)
        print()


def plain(value: Any) -> Any:
    """`value` for JSON: numbers of numpy and pandas as Python's, and null for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_csv(rows: OutputRows, columns: Iterable[str]) -> None:
    """A line a row; nested values under dotted names. Lists have no place in a cell."""
    flat = [dict(_flat(plain(row))) for row in rows]
    names = list(dict.fromkeys([*columns, *(name for row in flat for name in row)]))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([csv_cell(name) for name in names])
    writer.writerows([csv_cell(row.get(name)) for name in names] for row in flat)


def _flat(row: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif not isinstance(value, list):
            yield f"{before}{name}", value
