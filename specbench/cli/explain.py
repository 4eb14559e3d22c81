"""`specbench explain`: why a run is as fast as it is, and what a given speedup, or a narrow interval, would take."""

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from specbench.analysis.explain import Need, Waterfall, needs, waterfall
from specbench.analysis.explain.loop import LoopShare, loop_share
from specbench.analysis.findings import findings_of
from specbench.analysis.forecast.context_lengths import at_length
from specbench.analysis.summary import completed
from specbench.cli.explain_draft import compare_configs
from specbench.cli.formats import draw_picture, picture_file, print_rows
from specbench.cli.options import RUN, options
from specbench.cli.sample_size import sample_size, share
from specbench.errors import UserError
from specbench.formatting import span
from specbench.recorded import to_json
from specbench.records.catalog import Catalog
from specbench.records.run_record import RunRecord
from specbench.records.served import is_served
from specbench.report.console import plain_table, wide_console
from specbench.report.context_tables import beyond_run
from specbench.stats import Interval

if TYPE_CHECKING:
    from rich.text import Text

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
