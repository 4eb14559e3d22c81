"""Rows on stdout as a table, CSV or JSON, settings of other engines, and pictures.

Everything else goes to stderr: a pipe reads rows only.
"""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from specbench.errors import UserError, closest_first
from specbench.escaping import csv_cell, printable
from specbench.recorded import is_recorded, to_json

if TYPE_CHECKING:
    from specbench.interop.serving.settings import EngineSettings
    from specbench.report.figure import Drawn

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
        rows: the table's rows.
        form: table | csv | json.
        draw: prints the table for people.
        document: the content of JSON, if it is more than the rows.
        columns: the CSV's first columns, in this order, even if no row has them.
    """
    if form == "table":
        draw()
    elif form == "csv":
        _print_csv(rows, columns)
    else:
        print(as_json(rows if document is None else document))


def as_json(value: Any) -> str:
    """`value` as a JSON document for people and programs."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False)


def plain(value: Any) -> Any:
    """`value` for JSON: numbers of numpy and pandas as Python's, and null for a number that is not finite."""
    kind: Any = type(value)
    value = to_json(value) if is_recorded(kind) else value
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_csv(rows: OutputRows, columns: Iterable[str]) -> None:
    """One line per row; nested values under dotted names. Lists have no place in a cell."""
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


def print_settings(shown: Sequence["EngineSettings"]) -> None:
    """Print the settings of each engine, to be copied as they are."""
    for one in shown:
        print(printable(settings_text(one)))


def settings_text(one: "EngineSettings") -> str:
    """The settings of one engine for people."""
    from specbench.interop.serving.settings.engines import ENGINES

    engine = ENGINES[one["engine"]]
    lines = ["", f"{engine.title}: names checked against {one['checked']}; {one['page']}"]
    lines += [f"· {reason}" for reason in one["refused"]]
    if one["gamma"] is None:
        return "\n".join([*lines, f"· {engine.title} supports no candidate of this recommendation"])
    if (why := one.get("no_gain")) is not None:
        lines.append(f"· {why}")
    lines.append(
        f"{one['candidate']} with γ={one['gamma']}, {one['estimated']:.2f}× here ({one.get('measure', 'calibrated')})"
    )
    if one["file"] is not None:
        lines += [f"  {one['file']['name']}:", *(f"    {line}" for line in one["file"]["content"].splitlines())]
    lines += [f"  {line}" for line in one["command"].splitlines()]
    return "\n".join([*lines, *(f"· {note}" for note in one["notes"])])


def picture_file(name: str | None) -> Path | None:
    """The file that `--picture` names. Raises UserError if its ending is no format of figures."""
    if name is None:
        return None
    from specbench.report.figure import FORMATS

    file = Path(name)
    if file.suffix.removeprefix(".") not in FORMATS:
        raise UserError(f"--picture {file}: must end in .{', .'.join(FORMATS)}")
    return file


def draw_picture(file: Path, draw: Callable[[str], "Drawn"], form: str = "table") -> None:
    """Write the figure that `draw` makes of its name to `file`, and its points beside it; print these files."""
    from specbench.report.figure import save
    from specbench.report.style import headed, styled

    with styled():
        drawn = draw(file.stem)
        if drawn.under:
            headed(drawn.figure, drawn.title, drawn.under)
    for written in save(drawn, file.parent, [file.suffix.removeprefix(".")], "--picture FILE"):
        print(written, file=aside(form))
