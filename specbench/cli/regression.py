"""`specbench compare --baseline` and `--history`: what moved since an earlier measurement of the same configs."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from specbench import api
from specbench.cli.changed import NAMES, contradictory, measured, numbers, percent, require_records, since
from specbench.cli.formats import print_rows
from specbench.cli.options import Options, to_stderr
from specbench.errors import UserError
from specbench.nouns import with_noun
from specbench.records.catalog import Catalog
from specbench.records.run_record import Row
from specbench.report.console import plain_table, wide_console

if TYPE_CHECKING:
    from specbench.analysis.baseline import Comparison, Tested
    from specbench.records.measurements import Measurement

BASELINE = (
    "instead of two runs: all records of this machine against the lines of FILE of the same config. Exit code 1 if α "
    "or tokens per pass moved, speedup, c, v or memory got worse, completions are not the target's, or a record is "
    "disturbed"
)
AGAIN = "with --baseline: first run the records of a contended machine again (force=true)"
COUNTED_HELP = "with --baseline: only α and tokens per pass, whatever disturbs the machine; FILE may lack times"
OWN_SPEED = 0.05  # a change of the target's own step from which it is named
HISTORY = "instead of two runs: each config over the commits in FOLDER/history, and where it stepped"


def add_regression(parser: Options) -> None:
    """The options of `compare --baseline` and `compare --history`."""
    parser.add_argument("--baseline", metavar="FILE", help=BASELINE)
    parser.add_argument(
        "--margin", type=float, metavar="SHARE",
        help="with --baseline: the smallest change that counts, as a share (default 0: each that is certain)",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help=AGAIN)
    parser.add_argument("--counted", action="store_true", help=COUNTED_HELP)
    parser.add_argument("--history", action="store_true", help=HISTORY)
    parser.add_argument("--output", metavar="FOLDER", help="with --history: of the figure (default FOLDER/history)")
    parser.add_argument(
        "--write", action="store_true",
        help="with --baseline: update FILE from the records, all other lines remain; with --history: add the records",
    )  # fmt: skip
    parser.add_argument("--kept", action="store_true", help="with either: the copies in kept/ count as records, too")


def check_regression(arguments: Namespace) -> int:
    """Run `compare --baseline` or `--history`; returns the exit code.

    Raises UserError for options of one without it, or of both.
    """
    if arguments.runs:
        mode = "--history" if arguments.history else "--baseline"
        raise UserError(f"{arguments.runs[0]}: does not go with {mode}, which is of all records")
    if arguments.history:
        for name in ("baseline", "margin", "again", "counted"):
            if getattr(arguments, name):
                raise UserError(f"--{name}: does not go with --history")
        from specbench.cli.compare_history import history

        return history(arguments)
    if arguments.output is not None:
        raise UserError("--output: requires --history")
    if arguments.margin is not None and not 0 <= arguments.margin < 1:
        raise UserError(f"--margin {arguments.margin:g}: must be a share, at least 0 and below 1")
    return against_baseline(arguments)


def require_regression(arguments: Namespace) -> None:
    """Raises UserError for options that require `--baseline` or `--history`."""
    for name, required in (
        ("write", "--baseline FILE or --history"), ("kept", "--baseline FILE or --history"),
        ("again", "--baseline FILE"), ("counted", "--baseline FILE"), ("output", "--history"),
    ):  # fmt: skip
        if getattr(arguments, name):
            raise UserError(f"--{name}: requires {required}")
    if arguments.margin is not None:
        raise UserError("--margin: requires --baseline FILE")


def run_again(results: str, kept: bool, rows: "Sequence[Measurement]") -> "list[Measurement]":
    """Run the configs of the disturbed records again; returns all measurements after that."""
    disturbed = [row["run_id"] for row in rows if row["disturbed_by"]]
    if not disturbed:
        return list(rows)
    repeat(Catalog(results, kept), results, disturbed)
    return measured(results, kept)


def repeat(catalog: Catalog, results: str, disturbed: "Sequence[str]") -> None:
    """Run the configs of these records of a contended machine again."""
    from specbench.compose.to_schema import config_of_record
    from specbench.loading.model_loader import SharedModels

    models = SharedModels()
    try:
        for run_id in disturbed:
            to_stderr(f"contended, measured again: {run_id}")
            config = config_of_record(catalog.head(run_id).config)
            api.decode(replace(config, results=results, force=True), sys.stderr, models)
    finally:
        models.close()


def against_baseline(arguments: Namespace) -> int:
    """Compare the records with the baseline, or update it; returns the exit code.

    Raises UserError if there is no record, the file is not a baseline, or it has none of these configs.
    """
    from specbench.analysis.as_measurement import without_times
    from specbench.analysis.baseline import baseline_of, compare_with_baseline, sound
    from specbench.records.measurements import read_measurements, write_measurements

    file = Path(arguments.baseline)
    require_records(arguments.results, arguments.kept)
    before = [] if arguments.write and not file.exists() else read_measurements(file, "--baseline")
    now = measured(arguments.results, arguments.kept)
    if arguments.again:
        now = run_again(arguments.results, arguments.kept, now)
    if arguments.counted:
        if arguments.write and any("speedup" in row["quantities"] for row in before):
            raise UserError(f"--counted: {file} has times, which --write would remove; give another file")
        before, now = ([without_times(row) for row in rows] for rows in (before, now))
    if arguments.write:
        lines = baseline_of(now, before)
        write_measurements(file, lines, "--baseline FILE")
        print(f"{file}: {len(lines)} measurements, {len(sound(now))} of them from these records")
        for line in [*contradictory(now), *_without_times(sound(now))]:
            to_stderr(line)
        return 0
    found = compare_with_baseline(before, now, arguments.margin or 0.0)
    if len(found.unknown) == len(now):
        raise UserError(f"--baseline={file}: has none of these {len(now)} records' configs; --write adds them")
    if not found.tested and not found.same:
        raise UserError(f"--baseline={file}: records of one prompt cannot be compared; measure two or more")
    rows = [_row(one) for one in found.tested]
    print_rows(arguments.format, rows, lambda: _draw(found), document=_document(found))
    for line in _remarks(found):
        to_stderr(line)
    own = [one.before for one in found.tested if one.before["id"] == one.after["id"]] or before
    if not arguments.counted and not any("speedup" in row["quantities"] for row in own):
        to_stderr(
            f"failed: {file} has no speedup of these configs, so that no loss of speed would be found: add some by "
            "--write on a quiet machine"
        )
        return 1
    return 1 if found.fails else 0


def _without_times(rows: "Sequence[Measurement]") -> list[str]:
    return [f"contended, only its α and tokens per pass are in it: {row['run_id']}: {row['disturbed_by']}"
            for row in rows if row["disturbed_by"]]  # fmt: skip


def _remarks(found: "Comparison") -> list[str]:
    """Further remarks on a comparison, one line each."""
    lines = [f"failed: {row['run_id']}: completions are not the target's own" for row in found.wrong]
    lines += [f"failed: {row['run_id']}: {row['contradicts']}" for row in found.contradicting]
    lines += [
        f"failed: {row['run_id']}: contended, its times are not compared ({row['disturbed_by']}); --again runs it again"
        for row in found.disturbed
    ]
    lines += _own_speed(found)
    counts = (
        (len(found.unknown), "records of which the baseline has no line: --write adds them"),
        (len(found.same), "records that the baseline was made of"),
        (len(found.untimed), "records of which only α and tokens per pass are compared: no times on this hardware"),
        (found.missing, "lines of the baseline without a record"),
        (found.elsewhere, "lines of the baseline of another kind of device"),
    )
    return [*lines, *(f"{count} {what}" for count, what in counts if count)]


def _own_speed(found: "Comparison") -> list[str]:
    """A line if the target alone steps at another speed than in the baseline, by 5% or more."""
    from specbench.analysis.changes import slowdown

    apart = [exp(slowdown([one.before], [one.after])) for one in found.tested if one.quantity == "speedup"]
    changed = [ratio for ratio in apart if abs(ratio - 1) >= OWN_SPEED]
    if not changed:
        return []
    of = f"{min(changed):.2f} to {max(changed):.2f}" if len(changed) > 1 else f"{changed[0]:.2f}"
    return [
        f"{with_noun(len(changed), 'record')} whose target alone takes {of} times as long per step as in the baseline: "
        "the machine or the engine changed its speed; their c, v and speedup count as moved only beyond that factor"
    ]


def _row(one: "Tested") -> Row:
    values = {"baseline": one.before["quantities"][one.quantity][0], "now": one.after["quantities"][one.quantity][0]}
    commits = {"since": one.before["commit"], "commit": one.after["commit"], "created": one.before["created"]}
    named = {"run_id": one.after["run_id"], "quantity": one.quantity, "moved": one.moved, "fails": one.fails}
    return named | values | numbers(one.change, one.q) | commits


def _document(found: "Comparison") -> Row:
    """A comparison as JSON: the records by what became of them, and every quantity that moved."""
    groups = {name: [row["run_id"] for row in getattr(found, name)]
              for name in ("wrong", "contradicting", "disturbed", "unknown", "same", "untimed")}  # fmt: skip
    counts = {"compared": len(found.compared), "missing": found.missing, "elsewhere": found.elsewhere}
    return {"fails": found.fails, **counts, **groups, "moved": [_row(one) for one in found.tested if one.moved]}


def _draw(found: "Comparison") -> None:
    from specbench.analysis.as_measurement import COUNTED
    from specbench.analysis.changes import FALSE_ALARMS

    console = wide_console(160)
    moved = [one for one in found.tested if one.moved]
    if moved:
        table = plain_table(
            ("", "record", "", "baseline", "now", "change", "95%", "q", "since"), ("", "record", "since")
        )
        for one in sorted(moved, key=lambda one: (not one.fails, one.q)):
            row = _row(one)
            table.add_row(
                "worse" if one.fails and one.quantity not in COUNTED else "moved" if one.fails else "better",
                row["run_id"], NAMES.get(one.quantity, one.quantity), f"{row['baseline']:.4g}", f"{row['now']:.4g}",
                *percent(one.change), f"{one.q:.1g}", since(one.before),
            )  # fmt: skip
        console.print(table)
    others = len({one["run_id"] for one in (*found.wrong, *found.contradicting, *found.disturbed)})
    elsewise = f"; {others} {'record fails' if others == 1 else 'records fail'} for another reason" if others else ""
    console.print(
        f"{len(found.compared)} records compared, {len(found.tested)} quantities: {len(moved)} moved, "
        f"{sum(one.fails for one in moved)} fail{elsewise}"
    )
    if moved:
        console.print(
            f"q: the share of false alarms among changes at least as certain; moved: at most {FALSE_ALARMS:g}"
        )
