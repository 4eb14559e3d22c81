"""`specbench results`: all records as one table, a row a run."""

import sys
from argparse import Namespace

from specbench.cli.by_part import by_stratum
from specbench.cli.export import add_export, export
from specbench.cli.formats import as_json, aside, print_rows
from specbench.cli.options import RUN, options
from specbench.errors import UserError
from specbench.escaping import one_line
from specbench.nouns import with_noun
from specbench.records.catalog import Catalog, digest, kept_folder
from specbench.records.documents import DOCUMENTS
from specbench.records.json_schema import json_schema
from specbench.records.looping import many_loop, remarks_on_loops
from specbench.records.marks import remarks_on_proof, why_unproved
from specbench.records.profile_document import Profile
from specbench.records.schema import Row, RunRecord
from specbench.records.store import FAILED, Result, runs_folder
from specbench.report.console import Screen
from specbench.report.machine_text import machine_lines

# Stable names and order; new columns go after these.
COLUMNS = (
    "run_id", "target", "draft", "task", "temperature", "gamma", "prompts", "tokens", "alpha", "alpha_low",
    "alpha_high", "accepted_per_drafted", "tokens_per_pass", "tokens_per_pass_predicted", "c", "verify_cost",
    "speedup_predicted", "speedup_calibrated", "speedup_measured", "speedup_low", "speedup_high",
    "operations_predicted", "quality_metric", "quality_baseline", "quality_speculative", "identical", "device",
    "dtype", "simulated", "accept", "lossy", "alpha_rule", "total_variation", "prediction", "operations", "proof_z",
    "proof_p", "proof_power", "proof_z2", "disturbed", "disturbed_by", "batch", "tokens_per_second_baseline",
    "tokens_per_second", "numerics", "memory_bytes", "memory_baseline_bytes", "memory_ratio", "joules_per_token",
    "joules_per_token_baseline", "processing", "looping", "speedup_without_loops",
    "context",
)  # fmt: skip
# The columns that fit on a screen.
SHOWN = {
    "run_id": "id", "target": "target", "draft": "draft", "task": "task", "temperature": "T", "gamma": "γ",
    "prompts": "prompts", "alpha": "α", "c": "c", "verify_cost": "v", "tokens_per_pass": "tok/pass",
    "speedup_predicted": "predicted", "speedup_calibrated": "calibrated", "speedup_measured": "measured",
    "memory_ratio": "memory", "quality_speculative": "quality", "identical": "identical", "proof_z": "z",
    "accept": "rule", "batch": "batch", "tokens_per_second": "tok/s", "prediction": "prediction",
    "disturbed": "contended",
}  # fmt: skip
DIGITS = {
    "alpha": ".3f",
    "c": ".3f",
    "identical": ".0%",
    "looping": ".0%",
    "temperature": "g",
    "tokens_per_second": ".0f",
}  # else .2f
# Columns that are shown if rows differ in them.
TELLING = ("device", "dtype", "engine", "numerics", "processing", "context")


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
        help=f"print the JSON Schema of a record: run (default), profile, {', '.join(DOCUMENTS)}",
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

        kind = selected([arguments.schema], {"run": RunRecord, "profile": Profile} | DOCUMENTS, "kind of record")[0]
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
    return any(kept_folder(results).glob("*.json.gz"))


def none_kept(results: str) -> str:
    """That a folder has no kept copies, and where some are."""
    return (
        f"no kept record in {kept_folder(results)}: those that ship lie in results/kept of a clone of the repository; "
        "from elsewhere: --results CLONE/results"
    )


def measure_again(results: str) -> None:
    """Measure the records of a contended machine again, and name those that were contended again."""
    from specbench.cli.regression import repeat
    from specbench.records.frame import Records

    found = Records(results)
    if not found.disturbed:
        print("no record of a contended machine")
        return
    repeat(found.catalog, results, found.disturbed)
    left = Records(results).disturbed
    print(
        f"{len(found.disturbed)} measured again{', contended again: ' + ', '.join(map(digest, left)) if left else ''}"
    )


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
    loops = {"looping": "loops", "speedup_without_loops": "without loops"} if any(map(many_loop, done)) else {}
    shown = SHOWN | loops | {name: name for name in TELLING if len({str(row.get(name)) for row in done}) > 1}
    if not any("memory_ratio" in row for row in done):  # older records
        del shown["memory_ratio"]
    numbers = [[one_line(_cell(column, row)) for column in shown] for row in done]
    lines = [list(shown.values()), *numbers]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines if numbers else []:
        cells = [
            cell.ljust(width) if column in ("target", "draft", "task", "accept") else cell.rjust(width)
            for column, cell, width in zip(shown, line, widths, strict=True)
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
        print("lossy: the rule changes the distribution of completions, and its speedup is that of other completions")


def _cell(column: str, row: Row) -> str:
    value = row.get(column)
    if column == "proof_z" and (why := why_unproved(row)) is not None:
        return "untested" if value is None else f"{value:.2f} ({why.partition(':')[0]})"
    if column == "run_id":
        return digest(str(value))
    if column == "accept":
        return f"{value} (lossy)" if row.get("lossy") else str(value or "exact")
    if column == "disturbed":
        return "contended" if value else ""
    if column == "gamma" and value is None:  # a policy, or the depth of a tree
        return str(row.get("gamma_requested") or "–")
    if value is None:
        return "1" if column == "batch" else "–"
    if column == "target" and row.get("simulated"):
        return f"{value}*"
    if not isinstance(value, float):
        return str(value)
    if column == "memory_ratio":
        return f"{100 * (value - 1):+.0f}%"
    if column == "speedup_measured" and row.get("speedup_low") is not None:
        return f"{value:.2f} ({row['speedup_low']:.2f}–{row['speedup_high']:.2f})"
    return f"{value:{DIGITS.get(column, '.2f')}}"
