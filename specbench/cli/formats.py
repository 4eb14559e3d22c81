"""Rows on stdout as a table, CSV or JSON. Everything else goes to stderr, so that a pipe reads rows only."""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

from specbench.errors import UserError, closest_first
from specbench.escaping import csv_cell

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
