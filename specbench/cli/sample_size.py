"""`specbench explain --within`: how many prompts an interval of a given width requires."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.analysis.sample_size import Spread, alpha_spread, speedup_spread
from specbench.analysis.summary import PARTS
from specbench.cli.formats import print_rows
from specbench.records.schema import DECODING_MODES, Row, RunRecord

NO_SPREAD = 1e-9  # a relative deviation below this is rounding
WITHIN = (
    "instead of explaining: how many prompts α and the speedup need for a 95%% interval that reaches this far to "
    "either side, as a share of the value (2%% or 0.02), from the variance between the prompts of RUN; a small run is "
    "enough (specbench run limit=20). RUN may be a document of specbench alpha: for α of each draft. "
    "(the jobs of a sweep: specbench sweep --dry-run)"
)


@dataclass(frozen=True)
class Planned:
    """One quantity, and what it requires: prompts, and seconds if a run gives them."""

    draft: str
    quantity: str
    spread: Spread
    seconds_a_prompt: float | None

    def row(self, within: float) -> Row:
        needed, several = self.spread.needed(within), self.spread.deviation > NO_SPREAD  # else no spread has been seen
        seconds = self.seconds_a_prompt * needed.value if several and self.seconds_a_prompt is not None else None
        return {
            "draft": self.draft, "quantity": self.quantity, "value": self.spread.value, "prompts": self.spread.prompts,
            "within_now": self.spread.within(self.spread.prompts) if several else None,
            "within": within, "needed": int(needed.value) if several else None,
            "needed_low": needed.low if several else None, "needed_high": needed.high if several else None,
            "seconds": seconds,
        }  # fmt: skip


def sample_size(results: str, run: str, within: float, form: str) -> None:
    """Print how many prompts an interval of ± `within` requires, by a run or a document of `specbench alpha`.

    Args:
        results: the folder of the records.
        run: a run or a document: its id, a unique part of it, its path, or 'last'.
        within: how far the 95% interval may reach to either side, as a share of the value.
        form: the format of the rows.

    Raises:
        UserError: there is no such run, or its record cannot be read.
    """
    from specbench.records.alphas import betas, find_scored
    from specbench.records.catalog import Catalog

    scored = find_scored(results, run)
    if scored is not None:
        name, planned = scored["alpha_id"], [_of_scored(*found) for found in betas(scored)]
    else:
        catalog = Catalog(results)
        name = catalog.find(run)
        planned = of_run(catalog.whole(name))
    rows = [one.row(within) for one in planned]
    print_rows(form, rows, lambda: _draw(name, rows, within), document={"from": name, "rows": rows})


def share(text: str) -> float:
    """'2%' and '0.02' alike."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a share between 0 and 1, such as 2% or 0.02")
    return value


def of_run(record: RunRecord) -> list[Planned]:
    """alpha, and the speedups where the run has some."""
    prompts, summary = record["prompts"], record["summary"]
    ways = [prompt[way] for prompt in prompts for way in DECODING_MODES]
    seconds = sum(way["decode_s"] + way["start_s"] for way in ways) / len(prompts)
    spreads = {}
    if not summary.get("simulated"):
        spreads["α"] = alpha_spread([(sum(prompt["beta"]), len(prompt["beta"])) for prompt in prompts])
    if summary["speedup_measured"] is not None:
        spreads |= {
            called: speedup_spread(prompts, parts)
            for called, parts in zip(("speedup", "speedup end to end"), PARTS, strict=True)
        }
    return [Planned(summary["draft"], called, spread, seconds) for called, spread in spreads.items()]


def _of_scored(row: Row, texts: Sequence[Row]) -> Planned:
    spread = alpha_spread([(sum(text["beta"]), len(text["beta"])) for text in texts])
    return Planned(f"{row['draft']}, T={row['temperature']:g}", "α", spread, None)


def _draw(name: str, rows: list[Row], within: float) -> None:
    from rich.table import Table

    from specbench.report.terminal import terminal
    from specbench.stats import FEW_PROMPTS

    console = terminal()
    console.width = max(console.width, 120)
    console.print(f"from {name}: prompts for a 95% interval of ±{100 * within:g}%")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("draft", "", "value", "prompts", "gave", "needed", "95%", "decoding"):
        table.add_column(title, justify="left" if title in ("draft", "") else "right")
    for row in rows:
        now = "–" if row["within_now"] is None else f"±{100 * row['within_now']:.1f}%"
        span = "–" if row["needed_low"] is None else f"{row['needed_low']:.0f}–{row['needed_high']:.0f}"
        time = "" if row["seconds"] is None else f"{row['seconds']:.0f} s"
        table.add_row(
            row["draft"],
            row["quantity"],
            f"{row['value']:.3f}",
            str(row["prompts"]),
            now,
            "–" if row["needed"] is None else str(row["needed"]),
            span,
            time,
        )
    console.print(table)
    if rows and rows[0]["prompts"] == 1:
        console.print("one prompt does not show how much prompts differ: plan from a run of more (limit=20)")
    elif alike := [row["quantity"] for row in rows if row["needed"] is None]:
        console.print(
            f"{', '.join(dict.fromkeys(alike))}: every prompt gave the same, so nothing says how many are needed; plan "
            "from a run of more prompts"
        )
    elif rows and rows[0]["prompts"] < FEW_PROMPTS:
        console.print(f"{rows[0]['prompts']} prompts are few: how much prompts differ is itself known roughly")
