"""Parts of `specbench compare --baseline` and `--history`: records as measurements, and a change as it is shown."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.errors import UserError
from specbench.records.catalog import Catalog
from specbench.records.run_record import Row
from specbench.report.console import counted

if TYPE_CHECKING:
    from specbench.analysis.changes import Change
    from specbench.records.measurements import Measurement

NAMES = {"alpha": "α", "tokens_per_pass": "tokens per pass"}  # the others as they are


def require_records(results: str, kept: bool) -> None:
    """Raises UserError if a results folder has no record."""
    if not Catalog(results, kept).heads:
        raise UserError(f"--results={results}: it has no records; 'specbench sweep' makes some")


def measured(results: str, kept: bool) -> "list[Measurement]":
    """The newest record of each config and machine of a results folder, as measurements."""
    from specbench.analysis.as_measurement import measurement
    from specbench.records.measurements import identity

    catalog = Catalog(results, kept)
    heads = sorted(catalog.heads, key=lambda head: str(head.summary.get("created")))
    newest = {identity(head.config, head.summary)[0]: head.run_id for head in heads}
    rows = []
    with counted(len(newest), "records") as step:
        for run_id in newest.values():
            step()
            rows.append(measurement(catalog.whole(run_id)))
    return rows


def contradictory(rows: "Sequence[Measurement]") -> list[str]:
    """A line for each record that contradicts itself."""
    return [f"left out: {row['run_id']}: {row['contradicts']}" for row in rows if "contradicts" in row]


def numbers(change: "Change", q: float) -> Row:
    """A change as columns."""
    return {"ratio": change.ratio, "low": change.low, "high": change.high, "q": q, "paired": change.paired}


def percent(change: "Change") -> tuple[str, str]:
    """A change and its interval, in percent."""
    low, high = (f"{100 * (one - 1):+.1f}" for one in (change.low, change.high))
    return f"{100 * (change.ratio - 1):+.1f}%", f"{low} to {high}"


def since(row: "Measurement") -> str:
    """The commit and day of a measurement."""
    return f"{row['commit'][:7] if row['commit'] else 'no commit'} {row['created'][:10]}"
