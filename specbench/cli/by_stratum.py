"""`specbench results --by category | length | position`: the numbers of each run apart, with intervals."""

from specbench.analysis.acceptance.strata import NO_CATEGORY, By, Stratum, strata
from specbench.cli.formats import print_rows
from specbench.records.catalog import Catalog, digest
from specbench.records.schema import Row
from specbench.stats import FEW_PROMPTS, Interval

NAMED = ("run_id", "target", "draft", "task", "temperature", "gamma")


def by_stratum(results: str, by: By, run: str | None, form: str) -> None:
    """Print the strata of one run, or of all that have several. Raises UserError where there is no such run."""
    catalog = Catalog(results)
    run_ids = [catalog.find(run)] if run is not None else [head.run_id for head in catalog.heads]
    rows: list[Row] = []
    for run_id in run_ids:
        record = catalog.whole(run_id)
        summary: Row = {"run_id": run_id, **record["summary"]}
        untimed = _untimed(summary)
        timed = untimed is None
        found = strata(record["prompts"], by, timed)
        if run is None and {one.name for one in found} <= {NO_CATEGORY}:
            continue
        rows += [
            {name: summary.get(name) for name in NAMED} | {"by": by, "untimed": untimed} | _row(one) for one in found
        ]
    print_rows(form, rows, lambda: _draw(rows, by))


def _untimed(summary: Row) -> str | None:
    """Why a run's strata have no speedups; None if they have."""
    if summary.get("disturbed"):
        return f"the run was disturbed ({summary.get('disturbed_by')}); run it again with force=true"
    if summary.get("speedup_measured") is None:
        return "the run has no speedup, since its completions are not proved to be the target's"
    return None


def _row(one: Stratum) -> Row:
    row: Row = {"group": one.name, "prompts": one.prompts, "tokens": one.tokens}
    for name, interval in (("alpha", one.alpha), ("tokens_per_pass", one.tokens_per_pass), ("speedup", one.speedup)):
        found = interval or Interval(float("nan"), None, None)
        known = found.value == found.value
        row |= {name: found.value if known else None, f"{name}_low": found.low, f"{name}_high": found.high}
    return row


def _draw(rows: list[Row], by: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from specbench.report.terminal import terminal

    console = terminal()
    console.width = max(console.width, 120)
    if not rows:
        console.print("no run whose rows have a category; task.category_field=NAME names its field")
    for run_id in dict.fromkeys(row["run_id"] for row in rows):
        own = [row for row in rows if row["run_id"] == run_id]
        first = own[0]
        named = f"{first['target']} with draft {first['draft']} on {first['task']}, T={first['temperature']:g}"
        console.print(Text.assemble((digest(run_id), "bold"), " ", named))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in (by, "prompts", "tokens", "α", "95%", "tokens per pass", "95%", "speedup", "95%"):
            table.add_column(title, justify="left" if title == by else "right")
        for row in own:
            numbers = [cell for name in ("alpha", "tokens_per_pass", "speedup") for cell in _cells(row, name)]
            table.add_row(str(row["group"]), str(row["prompts"]), str(row["tokens"]), *numbers)
        console.print(table)
        if first["untimed"] is not None:
            console.print(f"no speedups: {first['untimed']}")
    if any(row["prompts"] < FEW_PROMPTS for row in rows):
        console.print(f"fewer than {FEW_PROMPTS} prompts only: their intervals are rough")


def _cells(row: Row, name: str) -> tuple[str, str]:
    if row[name] is None:
        return "–", "–"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    digits = 3 if name == "alpha" else 2
    return f"{row[name]:.{digits}f}", "–" if low is None else f"{low:.{digits}f}–{high:.{digits}f}"
