"""How many prompts an interval of a given width requires: `specbench explain --within`."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.analysis.paired import Spread, alpha_spread, speedup_spread
from specbench.analysis.summary import PARTS
from specbench.cli.formats import print_rows
from specbench.config.keys import SHARE, as_share
from specbench.formatting import span
from specbench.nouns import with_noun
from specbench.records.catalog import Catalog
from specbench.records.run_record import DECODING_MODES, Row, RunRecord
from specbench.report.console import plain_table, wide_console

NO_SPREAD = 1e-9  # a relative deviation below this is rounding


def share(text: str) -> float:
    """'2%' and '0.02' equal."""
    value = as_share(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text}: must be {SHARE.words}")
    return value


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

    scored = find_scored(results, run)
    if scored is not None:
        name = scored["alpha_id"]
        rows = [
            _size(f"{row['draft']}, T={row['temperature']:g}", "α", _alpha_spread(texts), None, within)
            for row, texts in betas(scored)
        ]
    else:
        catalog = Catalog(results)
        name = catalog.find(run)
        rows = _sizes_of_run(catalog.whole(name), within)
    print_rows(form, rows, lambda: _draw_sizes(name, rows, within), document={"from": name, "rows": rows})


def _sizes_of_run(record: RunRecord, within: float) -> list[Row]:
    """The prompts for α, and for the speedups if the run has some."""
    prompts, summary = record["prompts"], record["summary"]
    decoded = [prompt[mode] for prompt in prompts for mode in DECODING_MODES]
    seconds = sum(one.decode_s + one.start_s for one in decoded) / len(prompts)
    spreads = {} if summary.get("simulated") else {"α": _alpha_spread(prompts)}
    if summary["speedup_measured"] is not None:
        for quantity, parts in zip(("speedup", "speedup end to end"), PARTS, strict=True):
            spreads[quantity] = speedup_spread(prompts, parts)
    return [_size(summary["draft"], quantity, spread, seconds, within) for quantity, spread in spreads.items()]


def _alpha_spread(prompts: Sequence[Mapping[str, Any]]) -> Spread:
    return alpha_spread([(sum(prompt["beta"]), len(prompt["beta"])) for prompt in prompts])


def _size(draft: str, quantity: str, spread: Spread, seconds_a_prompt: float | None, within: float) -> Row:
    """One quantity, and what it requires: prompts, and seconds if a run gives them."""
    needed, several = spread.needed(within), spread.deviation > NO_SPREAD  # else no spread has been seen
    return {
        "draft": draft, "quantity": quantity, "value": spread.value, "prompts": spread.prompts,
        "within_now": spread.within(spread.prompts) if several else None,
        "within": within, "needed": int(needed.value) if several else None,
        "needed_low": needed.low if several else None, "needed_high": needed.high if several else None,
        "seconds": seconds_a_prompt * needed.value if several and seconds_a_prompt is not None else None,
    }  # fmt: skip


def _draw_sizes(name: str, rows: list[Row], within: float) -> None:
    from specbench.stats import FEW_PROMPTS

    console = wide_console()
    console.print(f"from {name}: prompts for a 95% interval of ±{100 * within:g}%")
    titles = ("draft", "", "value", "prompts", "gave", "needed", "95%", "decoding")
    table = plain_table(titles, left=("draft", ""))
    for row in rows:
        table.add_row(
            row["draft"], row["quantity"], f"{row['value']:.3f}", str(row["prompts"]),
            "–" if row["within_now"] is None else f"±{100 * row['within_now']:.1f}%",
            "–" if row["needed"] is None else str(row["needed"]), span(row["needed_low"], row["needed_high"], ".0f"),
            "" if row["seconds"] is None else f"{row['seconds']:.0f} s",
        )  # fmt: skip
    console.print(table)
    if any(row["quantity"] == "speedup" for row in rows):
        console.print(f"to stop a run when its interval is that narrow: specbench run until={100 * within:g}%")
    if rows and rows[0]["prompts"] == 1:
        console.print("one prompt does not show how much prompts differ: plan from a run of more (limit=20)")
    elif equal := [row["quantity"] for row in rows if row["needed"] is None]:
        console.print(
            f"{', '.join(dict.fromkeys(equal))}: every prompt gave the same, so nothing says how many are needed; plan "
            "from a run of more prompts"
        )
    elif rows and rows[0]["prompts"] < FEW_PROMPTS:
        console.print(
            f"{with_noun(rows[0]['prompts'], 'prompt, is')} few: how much prompts differ is itself known roughly"
        )
