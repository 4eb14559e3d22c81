"""`specbench results`: all records as one table, a row a run."""

import math
import sys
import types
from argparse import Namespace
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from specbench.analysis.acceptance.strata import ANSWER, NO_CATEGORY, By, Stratum, phases_of, strata
from specbench.cli.formats import as_json, aside, print_rows
from specbench.cli.options import RUN, Options, options, to_stderr
from specbench.errors import UserError
from specbench.escaping import one_line
from specbench.files import write_atomically
from specbench.formatting import span
from specbench.nouns import with_noun
from specbench.records.catalog import Catalog, digest, kept_folder
from specbench.records.documents import DOCUMENTS, Profile
from specbench.records.marks import many_loop, remarks_on_loops, remarks_on_proof, why_unproved
from specbench.records.schema import Row, RunRecord
from specbench.records.store import FAILED, Result, runs_folder
from specbench.report.console import Screen, plain_table, wide_console
from specbench.report.machine_text import machine_lines
from specbench.stats import FEW_PROMPTS, Interval

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
        from specbench.report.contexts import draw_runs, rows_by_context

        compared = rows_by_context(_chosen(arguments), arguments.run)
        print_rows(arguments.format, compared, lambda: draw_runs(compared))
        return 0
    if arguments.by is not None:
        by_stratum(_chosen(arguments), arguments.by, arguments.run, arguments.format)
        return 0
    if arguments.group_by is not None:
        from specbench.cli.compare import grouped

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


# `specbench results --as`: what a run or a document of `specbench alpha` measured, for other programs.

FORMS = ("vllm", "llama.cpp", "sglang", "tensorrt-llm", "speculation-profile", "inferencex")  # of forced acceptance
PROFILE = (
    "print RUN as JSON for other programs. profile: a draft and its target, α by position and rank, by task, position "
    "in the completion and context length, with intervals and sample sizes, and the measured speedup of each γ by "
    "context length; from runs that differ only in task or γ, or from one draft of a document of specbench alpha. "
    "'specbench results --schema profile' prints its JSON Schema. Others: the run's acceptance by position, as "
    "benchmarks of engines force it (vllm, llama.cpp, sglang, tensorrt-llm), as speculation_profile.json, or as "
    "InferenceX's lengths by γ"
)


def add_export(parser: Options) -> None:
    """The options of `results --as`."""
    about = (
        "show these runs and the machine that each ran on: an id, a unique part of it, a path, or 'last'; with --as: "
        "runs, or one document of specbench alpha"
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", help=about)
    parser.add_argument("--as", dest="kind", choices=("profile", *FORMS), help=PROFILE)
    parser.add_argument("--draft", metavar="NAME", help="with --as: which draft of a document that has several")
    parser.add_argument("--temperature", type=float, metavar="T", help="with --as: which temperature of it")
    parser.add_argument("--output", metavar="FILE", help="with --as: write it there instead of printing it")


def export(arguments: Namespace) -> None:
    """Print or write the document that `results --as` asks for.

    Raises UserError if no run is named, or the named do not make one document.
    """
    if not arguments.runs:
        form = f"--as {arguments.kind}"
        raise UserError(f"{form}: name the runs it is made of: specbench results RUN {form}")
    made: object
    if arguments.kind == "profile":
        made = _profile(arguments.results, arguments.runs, arguments.draft, arguments.temperature)
    elif other := [name for name in ("draft", "temperature") if getattr(arguments, name) is not None]:
        raise UserError(f"--{other[0]}: goes with --as profile; --as {arguments.kind} is of a run, which has one")
    else:
        made = _forced(arguments.kind, arguments.results, arguments.runs)
    text = made if isinstance(made, str) else as_json(made)
    if arguments.output is None:
        print(text)
    else:
        print(write_atomically(Path(arguments.output), text + "\n", "--output FILE"))


def _forced(form: str, results: str, names: list[str]) -> str | dict[str, object]:
    """The acceptance of runs, in the form in which another program is set to it."""
    from specbench.interop.readings.forced import written

    catalog = Catalog(results)
    records = [catalog.whole(run_id) for run_id in dict.fromkeys(map(catalog.find, names))]
    for record in records:
        if record["summary"]["simulated"]:
            to_stderr(f"simulated, acceptance was drawn at a given α or weights are random: {record['run_id']}")
    return written(form, records)


def _profile(results: str, names: list[str], draft: str | None, temperature: float | None) -> Profile:
    from specbench.analysis.profile import profile_of_runs, profile_of_scores
    from specbench.records.alphas import betas, find_scored

    documents = [one for name in names if (one := find_scored(results, name)) is not None]
    if not documents:
        if draft is not None or temperature is not None:
            raise UserError("--draft, --temperature: choose from a document of specbench alpha; a run has one of each")
        catalog = Catalog(results)
        return profile_of_runs([catalog.whole(run_id) for run_id in dict.fromkeys(map(catalog.find, names))])
    document = documents[0]
    if len(names) > 1:
        raise UserError(f"{names[0]}: a profile is of runs, or of one document of specbench alpha alone")
    scored = [
        (row, texts)
        for row, texts in betas(document)
        if draft in (None, row["draft"]) and temperature in (None, row["temperature"])
    ]
    if len(scored) != 1:
        there = ", ".join(f"{row['draft']} at T={row['temperature']:g}" for row, _ in betas(document))
        raise UserError(f"{document['alpha_id']}: holds {there}; name one with --draft and --temperature")
    return profile_of_scores(document["alpha_id"], *scored[0])


# `specbench results --by`: the numbers of parts of each run, with intervals.

UNSPLIT = {"turn": ("1",), "phase": (ANSWER,)}  # what a run has that has no turns or no thinking
NOTHING = {"turn": "no run of conversations of several turns", "phase": "no run with completions that think"}
OF_RUN = ("run_id", "target", "draft", "task", "temperature", "gamma")
PARTS_DIGITS = {"alpha": ".3f", "tokens_per_pass": ".2f", "speedup": ".2f"}


def by_stratum(catalog: Catalog, by: By, run: str | None, form: str) -> None:
    """Print the strata of one run, or of all that have several. Raises UserError where there is no such run."""
    run_ids = [catalog.find(run)] if run is not None else [head.run_id for head in catalog.heads]
    rows: list[Row] = []
    for run_id in run_ids:
        record = catalog.whole(run_id)
        summary: Row = {"run_id": run_id, **record["summary"]}
        untimed = _untimed(summary)
        found = strata(record["prompts"], by, untimed is None, phases_of(record) if by == "phase" else None)
        if run is None and {one.name for one in found} <= {NO_CATEGORY, *UNSPLIT.get(by, ())}:
            continue
        of_run = {name: summary.get(name) for name in OF_RUN} | {"by": by, "untimed": untimed}
        rows += [of_run | _stratum_row(one) for one in found]
    print_rows(form, rows, lambda: _draw_strata(rows, by, bool(run_ids)))


def _untimed(summary: Row) -> str | None:
    """Why a run's strata have no speedups; None if they have."""
    if summary.get("disturbed"):
        return f"the machine was contended ({summary.get('disturbed_by')}); run it again with force=true"
    if summary.get("speedup_measured") is None:
        return "the run has no speedup, since its completions fail the losslessness check"
    return None


def _stratum_row(one: Stratum) -> Row:
    row: Row = {"group": one.name, "prompts": one.prompts, "tokens": one.tokens}
    for name in PARTS_DIGITS:
        found: Interval = getattr(one, name) or Interval(math.nan, None, None)
        value = None if math.isnan(found.value) else found.value
        row |= {name: value, f"{name}_low": found.low, f"{name}_high": found.high}
    return row


def _draw_strata(rows: list[Row], by: str, has_runs: bool) -> None:
    from rich.text import Text

    console = wide_console()
    if not rows:
        nothing = NOTHING.get(by, "no run whose rows have a category; task.category_field=NAME names its field")
        console.print(nothing if has_runs else f"{nothing}; there is no record at all: 'specbench run' makes one")
    for run_id, own in groupby(rows, key=lambda row: row["run_id"]):
        first, *others = own
        named = f"{first['target']} with draft {first['draft']} on {first['task']}, T={first['temperature']:g}"
        console.print(Text.assemble((digest(run_id), "bold"), " ", named))
        titles = (by, "prompts", "tokens", "α", "95%", "tokens per pass", "95%", "speedup", "95%")
        table = plain_table(titles, left=(by,))
        for row in (first, *others):
            cells = [str(row["group"]), str(row["prompts"]), str(row["tokens"])]
            for name, form in PARTS_DIGITS.items():
                value = "–" if row[name] is None else f"{row[name]:{form}}"
                cells += [value, span(row[f"{name}_low"], row[f"{name}_high"], form)]
            table.add_row(*cells)
        console.print(table)
        if first["untimed"] is not None:
            console.print(f"no speedups: {first['untimed']}")
    if any(row["prompts"] < FEW_PROMPTS for row in rows):
        console.print(f"fewer than {FEW_PROMPTS} prompts only: their intervals are rough")


# The types of records as JSON Schema (draft 2020-12), for readers in other languages.


Schema = dict[str, object]
PLAIN: dict[object, str] = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null",
}  # fmt: skip


def json_schema(record: type) -> Schema:
    """The schema of a TypedDict. Docstrings are descriptions of objects, strings in `Annotated` those of keys."""
    definitions: dict[str, Schema] = {}
    schema = _reference(record, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": definitions}


def _reference(record: type, definitions: dict[str, Schema]) -> Schema:
    name = record.__name__
    if name not in definitions:
        definitions[name] = {}  # a type may hold itself
        definitions[name] = _object(record, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _object(record: Any, definitions: dict[str, Schema]) -> Schema:
    hints = get_type_hints(record, include_extras=True)
    return {
        "type": "object",
        "description": " ".join((record.__doc__ or "").split()),
        "properties": {key: _schema(hint, definitions) for key, hint in hints.items()},
        "required": [key for key in hints if key in record.__required_keys__],
    }


def _schema(hint: Any, definitions: dict[str, Schema]) -> Schema:
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if is_typeddict(hint):
        return _reference(hint, definitions)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (NotRequired, Required):
        return _schema(arguments[0], definitions)
    if origin is Annotated:
        return _schema(arguments[0], definitions) | {"description": ", ".join(map(str, arguments[1:]))}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, definitions) for one in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    return {}  # anything
