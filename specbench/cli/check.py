"""`specbench compare --baseline`: compare records with a baseline, and fail if alpha or a speedup moved."""

import json
import math
import sys
from pathlib import Path

from specbench.cli.options import Options
from specbench.errors import UserError
from specbench.escaping import printable
from specbench.files import write_atomically
from specbench.records.catalog import Catalog
from specbench.records.schema import Row

MARGIN = 0.15


BASELINE = (
    "instead of two runs: all records against a baseline, a JSON file. Exit code 1 if alpha left its recorded "
    "interval, a speedup on the same hardware fell by more than the margin, completions are not the target's, a record "
    "is missing, or a run was disturbed, so that its speedup cannot be compared"
)


def add_baseline(parser: Options) -> None:
    """The options of `compare --baseline`."""
    parser.add_argument("--baseline", metavar="FILE", help=BASELINE)
    parser.add_argument(
        "--margin", type=float, help=f"with --baseline: the largest drop of a speedup that passes (default {MARGIN})"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="with --baseline: update it from the records; measurements on other kinds of device remain",
    )


def check(results: str, file: Path, margin: float, write: bool) -> int:
    """Compare the records in `results` with the baseline `file`, or update it; returns the exit code.

    Raises:
        UserError: there is no record, or the file is not a baseline.
    """
    from specbench.analysis.regression import baseline_of, compare

    # What this machine measured: kept copies would stand in for measurements that are missing.
    rows = Catalog(results, kept=False).rows()
    if not rows:
        raise UserError(f"--results={results}: it has no records; 'specbench sweep' makes some")
    if write:
        kept = baseline_of(rows, _read(file) if file.exists() else [])
        write_atomically(file, json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "--baseline")
        print(f"{file}: {len(kept)} measurements written")
        return 0
    found = compare(_read(file), rows, margin)
    if not found.compared:
        raise UserError(f"--baseline={file}: holds no measurement of this kind of device; --write adds these records")
    for line in found.moved:
        print(printable(f"moved: {line}"), file=sys.stderr)
    for line in found.disturbed:
        print(printable(f"disturbed, its speedup is not compared: {line}"), file=sys.stderr)
    print(f"{found.compared} measurements, {len(found.moved)} moved")
    if found.disturbed:
        print(f"{len(found.disturbed)} disturbed; run them again with force=true when nothing else runs")
    if found.elsewhere:
        print(f"{found.elsewhere} of another kind of device, not compared")
    if found.untimed:
        print(f"{found.untimed} speedups recorded on other hardware, not compared")
    return 1 if found.moved or found.disturbed else 0


def _read(file: Path) -> list[Row]:
    try:
        rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--baseline={file}: cannot be read ({error}); --write makes one from records") from error
    if not isinstance(rows, list) or not all(map(_is_measurement, rows)):
        raise UserError(f"--baseline={file}: is not a baseline, a list of measurements; --write makes one from records")
    return rows


def _is_measurement(row: object) -> bool:
    """Whether a row of a file has what a baseline keeps, as it keeps it."""
    from specbench.analysis.regression import KEPT

    if not isinstance(row, dict) or not row.keys() >= set(KEPT):
        return False
    numbers = [row[key] for key in KEPT if key != "hardware" and row[key] is not None]
    finite = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
    return finite and row["alpha"] is not None and isinstance(row["hardware"], str | None)
