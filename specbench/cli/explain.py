"""`specbench explain`: why a run is as fast as it is, and what a given speedup would take."""

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.analysis.explain.needs import Need, needs
from specbench.analysis.explain.steps import Waterfall, waterfall
from specbench.cli.formats import print_rows
from specbench.cli.options import RUN, options
from specbench.cli.sample_size import WITHIN, sample_size, share
from specbench.errors import UserError
from specbench.records.schema import RunRecord
from specbench.stats import Interval

if TYPE_CHECKING:
    from rich.text import Text

ABOUT = (
    "Break the way from the ideal speedup γ+1 to the measured speedup into factors, each with a 95% interval and its "
    "milliseconds per token; then the losses as sentences, the largest first."
)


def main(argv: list[str]) -> int:
    """Run `specbench explain` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    parser = options("explain", ABOUT, rows=True)
    parser.add_argument("run", metavar="RUN", nargs="?", default="last", help=f"{RUN} (the default)")
    parser.add_argument(
        "--for-speedup", type=float, metavar="X", help="also print which α, c or v alone would give this speedup"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw the waterfall too: .svg, .pdf or .png")
    parser.add_argument("--within", type=share, metavar="SHARE", help=WITHIN)
    arguments = parser.read(argv)
    if arguments.within is not None:
        if arguments.for_speedup is not None or arguments.picture is not None:
            raise UserError("--for-speedup, --picture: explain a speedup; --within counts prompts: give it alone")
        sample_size(arguments.results, arguments.run, arguments.within, arguments.format)
        return 0
    if arguments.for_speedup is not None and not 0 < arguments.for_speedup < inf:
        raise UserError(f"--for-speedup {arguments.for_speedup:g}: must be a number above 0")
    if arguments.picture is not None:
        _check_ending(Path(arguments.picture))
    from specbench.records.catalog import Catalog

    catalog = Catalog(arguments.results)
    record = catalog.whole(catalog.find(arguments.run))
    if record["summary"]["speedup_measured"] is None:
        raise UserError(f"{record['run_id']}: its completions are not the target's, so it has no speedup to explain")
    if (record["summary"].get("batch") or 1) > 1:
        raise UserError(f"{arguments.run}: explain supports runs of one prompt at a time, and this run decoded a batch")
    found = waterfall(record)
    wanted = [] if arguments.for_speedup is None else needs(found, arguments.for_speedup)
    document = {"run_id": record["run_id"], **found.to_json()}
    if wanted:
        document |= {"for_speedup": arguments.for_speedup, "needs": [vars(one) for one in wanted]}
    rows = [{"run_id": record["run_id"], **step.to_json()} for step in found.steps]
    print_rows(arguments.format, rows, lambda: _show(record, found, arguments.for_speedup, wanted), document=document)
    if arguments.picture is not None:
        _picture(record, found, Path(arguments.picture), arguments.format)
    return 0


def _show(record: RunRecord, found: Waterfall, speedup: float | None, wanted: list[Need]) -> None:
    from rich.table import Table
    from rich.text import Text

    from specbench.report.explanation import name, needed, sentences
    from specbench.report.summary_text import headline, remarks
    from specbench.report.terminal import terminal

    console = terminal()
    console.width = max(console.width, 120)
    console.print(headline(record["summary"], record["environment"]["threads"]), markup=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("step", "factor", "95%", "speedup", "ms a token", "95%", "without it"):
        table.add_column(title, justify="left" if title == "step" else "right")
    table.add_row("ideal", "", "", f"{found.ideal:.2f}", f"{float(found.levels.step_ms) / found.ideal:.3f}", "", "")
    for step in found.steps:
        if step.name == "start":
            table.add_row(Text("measured", "bold"), "", *_total(found.measured, found))
        table.add_row(
            name(step.name, found), f"×{step.factor.value:.3f}", _span(step.factor, ".3f"), f"{step.speedup:.2f}",
            _ms(step.ms.value), _span(step.ms, "+.3f"), "" if step.alone is None else f"{step.alone:.2f}",
        )  # fmt: skip
    table.add_row(Text("end to end", "bold"), "", *_total(found.end_to_end, found))
    console.print(table)
    for line in sentences(found):
        console.print(f"· {line}")
    for line in needed(speedup, wanted) if speedup is not None else ():
        console.print(line)
    for line in remarks(record["summary"]):
        console.print(line)


def _ms(value: float) -> str:
    return f"{round(value, 3) + 0:+.3f}"  # no minus before a 0


def _total(speedup: Interval, found: Waterfall) -> tuple[str, "Text", str]:
    """The interval, the speedup and the time a token, where a speedup is reached."""
    from rich.text import Text

    return (
        _span(speedup, ".2f"),
        Text(f"{speedup.value:.2f}", "bold"),
        f"{float(found.levels.step_ms) / speedup.value:.3f}",
    )


def _span(one: Interval, form: str) -> str:
    return "–" if one.low is None or one.high is None else f"{one.low:{form}} to {one.high:{form}}"


def _check_ending(file: Path) -> None:
    from specbench.report.figure import FORMATS

    if file.suffix.removeprefix(".") not in FORMATS:
        raise UserError(f"--picture {file}: must end in .{', .'.join(FORMATS)}")


def _picture(record: RunRecord, found: Waterfall, file: Path, form: str) -> None:
    from specbench.cli.formats import aside
    from specbench.report.figure import save
    from specbench.report.figures.waterfall import draw
    from specbench.report.style import styled

    with styled():
        drawn = draw(record, found, name=file.stem)
    for written in save(drawn, file.parent, [file.suffix.removeprefix(".")], "--picture FILE"):
        print(written, file=aside(form))
