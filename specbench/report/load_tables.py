"""The output of `specbench recommend --load`: goodput by load, the best gamma at each, and what real runs served."""

from collections.abc import Sequence
from typing import Any

from specbench.formatting import NONE, number, percentage, span
from specbench.records.choosing import LoadDocument, LoadRow, ServedRow, ServiceRecord
from specbench.report.console import plain_table, wide_console

TIE = 0.01  # goodputs that differ by no more are equal: at a low load every candidate keeps the promise


def best_at(rows: Sequence[LoadRow]) -> LoadRow:
    """The row of lowest median time per output token, among rows of one load within `TIE` of the highest goodput."""
    highest = max(row["goodput"] for row in rows)
    return min(
        (row for row in rows if row["goodput"] >= (1 - TIE) * highest), key=lambda row: row["tpot_s"]["p50"]
    )  # fmt: skip


def best_drafts(record: LoadDocument) -> list[tuple[LoadRow, LoadRow]]:
    """The target alone, and the best draft and gamma, for each load."""
    found = []
    for rate in dict.fromkeys(row["rate"] for row in record["rows"]):
        here = [row for row in record["rows"] if row["rate"] == rate]
        found.append((here[0], best_at(here[1:])))
    return found


TIMES = ("TTFT p50 / 95 / 99 (ms)", "TPOT p50 / 95 / 99 (ms)")


def draw(record: LoadDocument) -> None:
    """Print the table of loads, the reasons, and the real runs."""
    from rich.markup import escape

    console = wide_console(130)
    promise = record["promise"]
    console.print(
        f"[bold]{escape(record['target'])}[/bold] on {escape(record['task'])}, T={record['temperature']:g}, "
        f"{record['dtype']}, engine {record['engine']}; {record['requests']} requests at each load, "
        f"{escape(record['arrivals'])} arrivals, at most {record['server_rows']} at a time",
        markup=True,
    )
    console.print(
        f"promised: first token within {1000 * promise['ttft_s']:.3g} ms, {1000 * promise['tpot_s']:.3g} ms per token "
        "after it; goodput: requests per second that keep both. Simulated from measured costs"
    )
    if (signs := record["disturbed_by"]) is not None:
        console.print(f"CONTENDED: {signs}, so the costs are unreliable; repeat it when nothing else runs")
    console.print(_loads(record))
    console.print("95%: over simulated arrivals, which are the same for all candidates: they rise and fall together")
    for line in record["reasons"]:
        console.print(f"· {line}", markup=False)
    if record["verified"]:
        console.print(_served(record["verified"]))
    for one in record["verified"]:
        if one["disturbed_by"]:
            console.print(f"load {one['load']:.2f}: CONTENDED, so what was served is unreliable: {one['disturbed_by']}")


def _loads(record: LoadDocument) -> Any:
    titles = ("load", "requests/s", "", "draft", "goodput", "95%", "kept", "tokens/s", *TIMES)
    table = plain_table(titles, left=("", "draft"))
    for pair in best_drafts(record):
        leads = best_at(pair)
        for place, row in enumerate(pair):
            table.add_row(
                *(("", "") if place else (number(row["load"]), number(row["rate"], 1))), "→" if row is leads else "",
                _name(row["candidate"], row["gamma"]), number(row["goodput"], 1),
                span(row["goodput_low"], row["goodput_high"], ".1f"), f"{row['kept']:.0%}",
                f"{row['tokens_per_second']:.0f}", *_times(row), style="bold" if row is leads else None,
            )  # fmt: skip
    return table


def _served(rows: list[ServedRow]) -> Any:
    titles = ("load", "draft", "", "goodput", "kept", "tokens/s", *TIMES)
    table = plain_table(titles, left=("draft", ""), title="served for real, and simulated with the same arrivals")
    for row in rows:
        name = number(row["load"]), _name(row["candidate"], row["gamma"])
        for head, what, one in ((name, "served", row["measured"]), (("", ""), "simulated", row["simulated"])):
            said = number(one["goodput"], 1), f"{one['kept']:.0%}", f"{one['tokens_per_second']:.0f}", *_times(one)
            table.add_row(*head, what, *said)
        off = {name: NONE if value is None else percentage(value, None, None) for name, value in row["errors"].items()}
        table.add_row("", "", "error", off["goodput"], "", "", f"p95 {off['ttft_p95']}", f"p95 {off['tpot_p95']}")
    return table


def _name(candidate: str, gamma: int) -> str:
    return f"{candidate}, γ={gamma}" if gamma else "target alone"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < 0.9995 else f"{1000 * seconds:,.0f}"


def _times(row: ServiceRecord | LoadRow) -> list[str]:
    """Quantiles in milliseconds."""
    return [
        " / ".join(_milliseconds(seconds) for seconds in values.values()) for values in (row["ttft_s"], row["tpot_s"])
    ]
