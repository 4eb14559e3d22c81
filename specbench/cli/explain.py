"""`specbench explain`: why a run is as fast as it is, and what a given speedup, or a narrow interval, would take."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from specbench.analysis.explain import Need, Waterfall, needs, waterfall
from specbench.analysis.explain.loop import LoopShare, loop_share
from specbench.analysis.findings import findings_of
from specbench.analysis.forecast.context_lengths import at_length
from specbench.analysis.paired import Spread, alpha_spread, speedup_spread
from specbench.analysis.summary import PARTS, completed
from specbench.cli.formats import draw_picture, picture_file, print_rows
from specbench.cli.options import RUN, options
from specbench.config.keys import SHARE, as_share
from specbench.errors import UserError
from specbench.formatting import span
from specbench.nouns import with_noun
from specbench.recorded import to_json
from specbench.records.catalog import Catalog
from specbench.records.run_record import DECODING_MODES, Row, RunRecord
from specbench.records.served import is_served
from specbench.report.console import plain_table, wide_console
from specbench.report.context_tables import beyond_run
from specbench.stats import Interval

if TYPE_CHECKING:
    from rich.text import Text
from specbench.cli.explain_draft import compare_configs

NO_SPREAD = 1e-9  # a relative deviation below this is rounding
WITHIN = (
    "instead of explaining: how many prompts α and the speedup need for a 95%% interval that reaches this far to "
    "either side, as a share of the value (2%% or 0.02), from the variance between the prompts of RUN; a small run is "
    "enough (specbench run limit=20). RUN may be a document of specbench alpha: for α of each draft. "
    "(the jobs of a sweep: specbench sweep --dry-run)"
)
DRAFT = "--draft"
ABOUT = (
    "Break the way from the ideal speedup γ+1 to the measured speedup into factors, each with a 95% interval and its "
    "milliseconds per token; then the losses as sentences, the largest first. "
    "`specbench explain --draft target=NAME draft=NAME` runs nothing: it compares the configs and tokenizers of both."
)


def main(argv: list[str]) -> int:
    """Run `specbench explain` with the words `argv`."""
    if DRAFT in argv and not {"-h", "--help"} & {*argv}:
        return compare_configs([word for word in argv if word != DRAFT])
    parser = options("explain", ABOUT, rows=True)
    parser.add_argument("run", metavar="RUN", nargs="?", default="last", help=f"{RUN} (the default)")
    parser.add_argument(
        "--for-speedup", type=float, metavar="X", help="also print which α, c or v would by itself give this speedup"
    )
    parser.add_argument("--picture", metavar="FILE", help="also draw the waterfall: .svg, .pdf or .png")
    parser.add_argument("--within", type=share, metavar="SHARE", help=WITHIN)
    arguments = parser.read(argv)
    if arguments.within is not None:
        if arguments.for_speedup is not None or arguments.picture is not None:
            raise UserError("--for-speedup, --picture: explain a speedup; --within counts prompts: give it by itself")
        sample_size(arguments.results, arguments.run, arguments.within, arguments.format)
        return 0
    if arguments.for_speedup is not None and not 0 < arguments.for_speedup < inf:
        raise UserError(f"--for-speedup {arguments.for_speedup:g}: must be a number above 0")
    picture = picture_file(arguments.picture)

    catalog = Catalog(arguments.results)
    record = catalog.whole(catalog.find(arguments.run))
    if is_served(record):
        if arguments.for_speedup is not None or picture is not None:
            raise UserError(f"{record['run_id']}: is of a server, whose c and v are not seen: leave the option out")
        explain_served(record, arguments.format)
        return 0
    if record["summary"]["speedup_measured"] is None:
        raise UserError(f"{record['run_id']}: its completions are not the target's, so it has no speedup to explain")
    if (record["summary"].get("batch") or 1) > 1:
        raise UserError(f"{arguments.run}: explain supports runs of one prompt at a time, and this run decoded a batch")
    found = waterfall(record)
    wanted = [] if arguments.for_speedup is None else needs(found, arguments.for_speedup)
    document = {"run_id": record["run_id"], **to_json(found.explanation)}
    loop = loop_share(record)
    if loop is not None:
        document["loop"] = vars(loop)
    document["findings"] = findings_of(record)
    if wanted:
        document |= {"for_speedup": arguments.for_speedup, "needs": [vars(one) for one in wanted]}
    more: str | None = None
    if (beyond := beyond_run(catalog, record["run_id"])) is not None:
        further, contended = beyond
        shown = ("tokens", "gamma", "c", "verify_cost", "speedup")
        document["forecast"] = {name: getattr(further, name) for name in shown} | {"contended": contended}
        more = at_length(further) + ("; CONTENDED runs are in these costs" if contended else "")
    rows = [{"run_id": record["run_id"], **to_json(step)} for step in found.steps]
    print_rows(
        arguments.format, rows, lambda: _draw(record, found, loop, arguments.for_speedup, wanted, more),
        document=document,
    )  # fmt: skip
    if picture is not None:
        from specbench.report.figures.waterfall import draw

        draw_picture(picture, partial(draw, record, found), arguments.format)
    return 0


def explain_served(record: RunRecord, form: str) -> None:
    """Print why a server is as fast as it is, as far as counts and times tell: tokens per pass, cost of a pass."""
    from specbench.report.served_text import answer, headline, losses

    summary: Any = record["summary"]
    found = losses(summary)

    def draw() -> None:
        console = wide_console()
        console.print(answer(summary), markup=True)
        console.print(headline(summary), markup=True)
        for line in found:
            console.print(f"· {line['line']}")

    print_rows(form, [{"run_id": record["run_id"], **row} for row in found], draw)


def _draw(
    record: RunRecord, found: Waterfall, loop: LoopShare | None, speedup: float | None, wanted: list[Need],
    further: str | None,
) -> None:  # fmt: skip
    from rich.text import Text

    from specbench.report.explanation import name, needed, of_loop, sentences
    from specbench.report.findings import lines
    from specbench.report.remarks import remarks
    from specbench.report.summary_text import headline

    console = wide_console()
    console.print(headline(record["summary"], record["environment"]["threads"]), markup=True)
    table = plain_table(("step", "factor", "95%", "speedup", "ms per token", "95%", "without it"), left=("step",))
    table.add_row("ideal", "", "", f"{found.ideal:.2f}", f"{float(found.levels.step_ms) / found.ideal:.3f}", "", "")
    for step in found.steps:
        if step.step == "start":
            table.add_row(Text("measured", "bold"), "", *_total(found.measured, found))
        table.add_row(
            name(step.step, found), f"×{step.factor.value:.3f}", _span(step.factor, ".3f"), f"{step.speedup:.2f}",
            _ms(step.ms.value), _span(step.ms, "+.3f"), "" if step.alone is None else f"{step.alone:.2f}",
        )  # fmt: skip
    table.add_row(Text("end to end", "bold"), "", *_total(found.end_to_end, found))
    console.print(table)
    said = [] if record["summary"].get("disturbed") else sentences(found)  # of a contended run nothing is concluded
    for line in (*said, *of_loop(loop), *([further] if further else [])):
        console.print(f"· {line}")
    for line in needed(speedup, wanted) if speedup is not None else ():
        console.print(line)
    for line in (*lines(record), *remarks(completed(record)["summary"])):
        console.print(line)


def _ms(value: float) -> str:
    return f"{round(value, 3) + 0:+.3f}"  # no minus before a 0


def _total(speedup: Interval, found: Waterfall) -> tuple[str, "Text", str]:
    """The interval, the speedup and the time per token of a reached speedup."""
    from rich.text import Text

    time = f"{float(found.levels.step_ms) / speedup.value:.3f}"
    return _span(speedup, ".2f"), Text(f"{speedup.value:.2f}", "bold"), time


def _span(one: Interval, form: str) -> str:
    return span(one.low, one.high, form, " to ")


# `specbench explain --within`: how many prompts an interval of a given width requires.


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
