"""`specbench results --by`: the numbers of parts of each run, with intervals."""

import math
from itertools import groupby

from specbench.analysis.acceptance.phases import ANSWER, phases_of
from specbench.analysis.acceptance.strata import NO_CATEGORY, By, Stratum, strata
from specbench.cli.formats import print_rows
from specbench.errors import UserError
from specbench.formatting import span
from specbench.records.catalog import Catalog, digest
from specbench.records.run_record import Row
from specbench.records.served import SERVED, is_served
from specbench.report.console import plain_table, wide_console
from specbench.stats import FEW_PROMPTS, Interval

UNSPLIT = {"turn": ("1",), "phase": (ANSWER,)}  # what a run has that has no turns or no thinking
NOTHING = {"turn": "no run of conversations of several turns", "phase": "no run with completions that think"}
OF_RUN = ("run_id", "target", "draft", "task", "temperature", "gamma")
PARTS_DIGITS = {"alpha": ".3f", "tokens_per_pass": ".2f", "speedup": ".2f"}


def by_stratum(catalog: Catalog, by: By, run: str | None, form: str) -> None:
    """Print the strata of one run, or of all that have several. Raises UserError if there is no such run."""
    run_ids = [catalog.find(run)] if run is not None else [head.run_id for head in catalog.heads]
    rows: list[Row] = []
    for run_id in run_ids:
        record = catalog.whole(run_id)
        if is_served(record) and by in ("position", "phase"):
            if run is not None:
                raise UserError(f"--by {by}: {run_id} is of a server, whose passes are not seen; --by category or turn")
            continue
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
    if summary.get(SERVED) and summary.get("lossless") and summary.get("speedup_measured") is None:
        return "there was no server without a draft (plain=URL)"
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
