"""`specbench results`: all records as one table, one row per run."""

import sys
from argparse import Namespace

from specbench.analysis.columns import COLUMNS
from specbench.cli.by_part import by_stratum
from specbench.cli.export import add_export, export
from specbench.cli.formats import as_json, aside, print_rows
from specbench.cli.options import RUN, options
from specbench.errors import UserError
from specbench.escaping import one_line
from specbench.nouns import with_noun
from specbench.records.catalog import Catalog, digest, kept_files, kept_folder
from specbench.records.documents import DOCUMENTS
from specbench.records.json_schema import json_schema
from specbench.records.looping import many_loop, remarks_on_loops
from specbench.records.marks import remarks_on_proof
from specbench.records.profile_document import Profile
from specbench.records.run_record import Row, RunRecord, ServedRecord
from specbench.records.served import SERVED
from specbench.records.store import FAILED, Result, runs_folder
from specbench.report.console import Screen
from specbench.report.machine_text import machine_lines
from specbench.report.views import LISTED, LOOPS, SERVED_LISTED, TELLING


def main(argv: list[str]) -> int:
    """Run `specbench results` with the words `argv`."""
    about = "All records of this machine as one table, a row for each run; with --kept also those that ship."
    parser = options("results", about, rows=True)
    parser.add_argument(
        "--forget", action="store_true", help="remove the records of failed runs, which hold no numbers"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure the records of a contended machine again (force=true)"
    )
    parser.add_argument(
        "--schema", nargs="?", const="run", metavar="KIND",
        help=f"print the JSON Schema of a record: run (default), server, profile, {', '.join(DOCUMENTS)}",
    )  # fmt: skip
    parser.add_argument(
        "--group-by", metavar="KEY", help="compare runs that differ only in KEY (draft, gamma, ...) with the fastest"
    )
    parser.add_argument(
        "--by", choices=("category", "length", "position", "turn", "phase", "context"),
        help="split each run by kind of prompt, tokens of context, position in the completion, turn of a conversation, "
        "or phase (thinking or answer, by the chat template's tags), with intervals; "
        "context: compare runs that differ only in context=, gamma= and how many prompts, and forecast their costs",
    )  # fmt: skip
    parser.add_argument("--run", metavar="RUN", help=f"with --by: only this run; {RUN}")
    parser.add_argument(
        "--kept", action="store_true", help="also the kept copies (results/kept); without records of your own "
        "--by and --group-by read them anyway",
    )  # fmt: skip
    add_export(parser)
    arguments = parser.read(argv)
    if arguments.kind is not None:
        views = ("forget", "again", "schema", "group_by", "by", "run")
        if other := [name for name in views if getattr(arguments, name)] + ["format"] * (arguments.format != "table"):
            raise UserError(f"--{other[0].replace('_', '-')}: does not go with --as {arguments.kind}")
        export(arguments)
        return 0
    if other := [name for name in ("draft", "temperature", "output") if getattr(arguments, name) is not None]:
        raise UserError(f"--{other[0]}: requires --as profile")
    if arguments.runs:
        if other := [name for name in ("forget", "again", "schema", "group_by", "by") if getattr(arguments, name)]:
            raise UserError(
                f"--{other[0].replace('_', '-')}: applies to all records; leave {arguments.runs[0]} out"
                + (f", or give --run {arguments.runs[0]}" if other[0] == "by" else "")
            )
        show_runs(arguments.results, arguments.runs, arguments.format)
        return 0
    if arguments.run is not None and arguments.by is None:
        raise UserError("--run: requires --by; 'specbench show RUN' shows a run")
    if arguments.by == "context":
        from specbench.report.context_tables import draw_runs, rows_by_context

        compared = rows_by_context(_chosen(arguments), arguments.run)
        print_rows(arguments.format, compared, lambda: draw_runs(compared))
        return 0
    if arguments.by is not None:
        by_stratum(_chosen(arguments), arguments.by, arguments.run, arguments.format)
        return 0
    if arguments.group_by is not None:
        from specbench.cli.groups import grouped

        grouped(arguments.results, arguments.group_by, arguments.format, _chosen(arguments))
        return 0
    if arguments.schema is not None:
        from specbench.report.table import selected

        kind = selected(
            [arguments.schema],
            {"run": RunRecord, "server": ServedRecord, "profile": Profile} | DOCUMENTS,
            "kind of record",
        )[0]
        print(as_json(json_schema(kind)))
        return 0
    if arguments.forget:
        forgotten = Catalog(arguments.results).forget_failed()
        print(f"{with_noun(len(forgotten), 'record')} of failed runs removed")
        return 0
    if arguments.again:
        measure_again(arguments.results)
        return 0
    _list_records(arguments.results, arguments.kept, arguments.format)
    return 0


def _chosen(arguments: Namespace) -> Catalog:
    """The records that --by and --group-by split or compare."""
    catalog = Catalog(arguments.results)
    if arguments.kept and not has_kept(arguments.results):
        print(none_kept(arguments.results), file=aside(arguments.format))
    return catalog if arguments.kept or arguments.run is not None else catalog.own_first()


def _list_records(results: str, kept: bool, form: str) -> None:
    """Print the records of this machine, and on request the kept copies after them."""
    every = Catalog(results)
    mine = [row for row in every.rows(failed=True) if row["run_id"] in every.own]
    others = [row for row in every.rows(failed=True) if row["run_id"] not in every.own]
    rows = [*mine, *(others if kept else ())]
    if rows or form != "table":
        print_records(form, rows)
    elif not others and not kept:
        print(f"no record in {runs_folder(results)} or {kept_folder(results)}; 'specbench run' makes one")
    else:
        print(f"no record of your own in {runs_folder(results)}; 'specbench run' makes one")
    if others and not kept:
        print(f"{with_noun(len(others), 'kept record, is')} not shown: specbench results --kept", file=aside(form))
    if kept and not has_kept(results):
        print(none_kept(results), file=aside(form))


def has_kept(results: str) -> bool:
    """Whether a folder has kept copies."""
    return bool(kept_files(results))


def none_kept(results: str) -> str:
    """A message that a folder has no kept copies, and where some are."""
    return (
        f"no kept record in {kept_folder(results)}: those that ship lie in results/kept of a clone of the repository; "
        "from elsewhere: --results CLONE/results"
    )


def measure_again(results: str) -> None:
    """Measure the records of a contended machine again, and name those that were contended again.

    Records of other engines' servers, which may be gone, are only named, with the command that measures them again.
    """
    from specbench.cli.regression import repeat
    from specbench.records.frame import Records

    found = Records(results)
    if not found.disturbed:
        print("no record of a contended machine")
        return
    served = {head.run_id for head in found.catalog.heads if head.summary.get(SERVED)}
    for run_id in sorted(served & {*found.disturbed}):
        print(f"{run_id}: of a server; its specbench server command with force=true measures it again")
    own = [run_id for run_id in found.disturbed if run_id not in served]
    repeat(found.catalog, results, own)
    left = [run_id for run_id in Records(results).disturbed if run_id not in served]
    print(f"{len(own)} measured again{', contended again: ' + ', '.join(map(digest, left)) if left else ''}")


def show_runs(results: str, names: list[str], form: str) -> None:
    """Print the numbers of each run that `names` mean, and the machine that it ran on."""
    from specbench.analysis.summary import completed

    catalog = Catalog(results)
    records = [completed(catalog.whole(run_id)) for run_id in dict.fromkeys(map(catalog.find, names))]
    rows: list[Row] = [{"run_id": record["run_id"], **record["summary"]} for record in records]
    if form != "table":
        more = [{"environment": record["environment"], "machine": record.get("machine")} for record in records]
        print_records(form, [row | both for row, both in zip(rows, more, strict=True)] if form == "json" else rows)
        return
    for record in records:
        Screen(sys.stderr).show(Result(catalog.head(record["run_id"]).file, record, reused=True))
        for name, said in machine_lines(record):
            print(one_line(f"{name}: {said}"))


def print_records(form: str, rows: list[Row]) -> None:
    """Print the summaries of records in `form`."""
    ordered = [{column: row.get(column) for column in COLUMNS} | row for row in rows]
    if form == "csv":  # histograms have no place in a cell
        ordered = [{name: value for name, value in row.items() if not isinstance(value, dict)} for row in ordered]
    print_rows(form, ordered, lambda: table(rows), columns=COLUMNS)


def table(rows: list[Row]) -> None:
    """Show the numbers of the runs that have some, and what the others failed of. Plain text: thousands of rows."""
    done = [row for row in rows if FAILED not in row]
    telling = [one for one in TELLING if len({str(row.get(one.name)) for row in done}) > 1]
    served = SERVED_LISTED if any(row.get(SERVED) for row in done) else ()
    shown = [*LISTED, *(LOOPS if any(map(many_loop, done)) else ()), *served, *telling]
    if not any("memory_ratio" in row for row in done):  # older records
        shown = [one for one in shown if one.name != "memory_ratio"]
    numbers = [[one_line(one.text(row)) for one in shown] for row in done]
    lines = [[str(one.title) for one in shown], *numbers]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines if numbers else []:
        cells = [
            cell.ljust(width) if one.name in ("target", "draft", "task", "accept") else cell.rjust(width)
            for one, cell, width in zip(shown, line, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
    for row in rows:
        if FAILED in row:
            print(one_line(f"failed: {row['run_id']}: {row[FAILED]}"))
    if any(row.get("simulated") for row in rows):
        print("* simulated: acceptance was drawn at a given α, or weights are random")
    if any(row.get("disturbed") for row in rows):
        print("contended: the machine was shared or held back; c, v and the speedups are unreliable (docs/method.md)")
    for remark in (*remarks_on_proof(done), *remarks_on_loops(done)):
        print(remark)
    if any(row.get("lossy") for row in rows):
        print("lossy: the rule changes the distribution of completions, and its speedup belongs to other completions")
