"""`specbench read`: what engines print about speculative decoding, on one definition."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.cli.formats import FORMATS, print_rows
from specbench.cli.options import Options
from specbench.errors import UserError
from specbench.formatting import interval
from specbench.report.console import plain_table, wide_console

if TYPE_CHECKING:
    from specbench.interop.readings.estimate import Best, Difference, Estimate
    from specbench.interop.readings.reading import Format, Reading
    from specbench.records.draft_signs import Finding

ABOUT = (
    "Read what an engine prints about speculative decoding, say what each number is, and estimate α from the counts. "
    "Several files are compared on the same definitions. docs/acceptance.md explains them."
)
MOST_GAMMA = 1000
STDIN = "-"


class Source(NamedTuple):
    """A file or one of its kinds of draft, its format, its content, and the estimates from it."""

    path: str
    file: str
    form: "Format"
    reading: "Reading"
    estimate: "Estimate | None"
    best: "Best | None"


def main(argv: list[str]) -> int:
    """Run `specbench read` with the words `argv`."""
    from specbench.interop import readings

    names = [form.name for form in readings.FORMATS]
    parser = Options(prog="specbench read", description=ABOUT, allow_abbrev=False)
    formats = "; ".join(f"{form.name}: {form.engine}, {form.about}" for form in readings.FORMATS)
    parser.add_argument("files", nargs="+", metavar="FILE", help=f"'-' is the standard input; {formats}")
    parser.add_argument(
        "--as", dest="form", choices=names, metavar="NAME", help="the format of the file; unset: detected"
    )
    parser.add_argument(
        "--since", metavar="FILE", help="an earlier page of the same counters (/metrics), which is subtracted"
    )
    parser.add_argument("--gamma", type=int, metavar="N", help="draft tokens in each pass, if the file does not say")
    parser.add_argument("--c", type=float, metavar="X", help="draft step over target step: gives the best γ by theory")
    parser.add_argument(
        "--v", type=float, metavar="X", help="cost of verifying a pass of the file's γ, in steps (default 1)"
    )
    parser.add_argument("--format", default="table", choices=FORMATS, help="default table")
    arguments = parser.read(argv)
    _check(arguments.gamma, arguments.c, arguments.v)
    if arguments.since is not None and len(arguments.files) > 1:
        raise UserError(f"--since {arguments.since}: is subtracted from one file, not from {len(arguments.files)}")
    if [*arguments.files, arguments.since].count(STDIN) > 1:
        raise UserError("-: the standard input can be read only once; give files")
    since = None if arguments.since is None else readings.Document.read(Path(arguments.since))
    sources = []
    for file in arguments.files:
        form, whole = readings.read(Path(file), since, arguments.form)
        parts = {f"{file} ({kind})": one for kind, one in whole.kinds.items()} or {file: whole}
        for name, part in parts.items():
            reading = part
            if arguments.gamma is not None:  # what is asked for has been given
                reading = replace(reading, notes=[note for note in reading.notes if "--gamma" not in note])
            found = readings.estimate(reading, arguments.gamma)
            best = None
            if arguments.c is not None and found is not None and found.alpha is not None:
                best = readings.best_gamma(found.alpha, arguments.c, arguments.v or 1.0, found.gamma or 1.0)
            sources.append(Source(file, name, form, reading, found, best))
    differences = _differences(sources)
    document = {"files": [_document(source) for source in sources], "differences": differences}
    print_rows(arguments.format, list(_rows(sources)), lambda: _draw(sources, differences), document=document)
    return 0


def _check(gamma: int | None, c: float | None, v: float | None) -> None:
    if gamma is not None and not 1 <= gamma <= MOST_GAMMA:
        raise UserError(f"--gamma {gamma}: must be from 1 to {MOST_GAMMA}")
    if c is not None and not 0 <= c < float("inf"):
        raise UserError(f"--c {c:g}: must be at least 0, a draft step's time over a target step's")
    if v is not None and not 0 < v < float("inf"):
        raise UserError(f"--v {v:g}: must be above 0, the time to verify a pass, in steps")
    if v is not None and c is None:
        raise UserError(f"--v {v:g}: is for the best γ, which also needs --c")


def _differences(sources: Sequence[Source]) -> list[dict[str, object]]:
    """α of each file less α of each later file."""
    from specbench.interop.readings.estimate import difference

    rows = []
    for first, second in combinations(sources, 2):
        if first.estimate is None or second.estimate is None or first.path == second.path:
            continue
        found: Difference | None = difference(first.estimate, second.estimate)
        if found is not None:
            rows.append({"a": first.file, "b": second.file, **asdict(found), "shown": found.shown})
    return rows


def _document(source: Source) -> dict[str, object]:
    return {
        "file": source.file,
        "format": source.form.name,
        "engine": source.form.engine,
        "page": source.form.page,
        "printed": [asdict(one) for one in source.reading.printed],
        "ends": source.reading.ends,
        "estimate": None if source.estimate is None else asdict(source.estimate),
        "best": None if source.best is None else asdict(source.best),
        "findings": _findings(source),
        "notes": list(source.reading.notes),
    }


def _findings(source: Source) -> "list[Finding]":
    from specbench.interop.readings.draft_findings import findings

    return findings(source.estimate)


def _rows(sources: Sequence[Source]) -> Sequence[dict[str, object]]:
    """A row for each number that is printed, and for each that is estimated."""
    rows = []
    for source in sources:
        about = {"file": source.file, "engine": source.form.engine, "format": source.form.name}
        rows += [
            {**about, "source": "printed", **asdict(one), "low": None, "high": None} for one in source.reading.printed
        ]
        if source.estimate is not None:
            rows += [{**about, "source": "estimated", **one} for one in _estimated(source)]
    return rows


def _estimated(source: Source) -> list[dict[str, object]]:
    found, ends = source.estimate, source.reading.ends
    assert found is not None
    rows: list[dict[str, object]] = []

    def add(name: str, value: float | None, meaning: str, bonus: str = "", low: Any = None, high: Any = None) -> None:
        if value is not None:
            rows.append({
                "name": name, "value": value, "meaning": meaning, "pooling": "pooled", "ends": ends, "bonus": bonus,
                "low": low, "high": high,
            })  # fmt: skip

    add("alpha", found.alpha, f"α by {found.method}", low=found.low, high=found.high)
    add("alpha_ends", found.alpha_ends, "α if no end is a rejection")
    add("rate", found.rate, "accepted / drafted", "without")
    add("length", found.length, "tokens per pass", "with")
    add("predicted", found.predicted, "tokens per pass by Eq. 1", "with")
    for place, value in enumerate(found.conditional, 1):
        add(f"conditional_{place}", value, f"conditional acceptance at position {place}")
    if source.best is not None:
        add("best_gamma", source.best.gamma, "the best γ by Theorem 3.8")
        add("best_speedup", source.best.speedup, "speedup at it by Theorem 3.8")
    return rows


def _draw(sources: Sequence[Source], differences: Sequence[dict[str, object]]) -> None:
    from rich.text import Text

    from specbench.report.findings import PAGE
    from specbench.report.findings import said as said_of

    console = wide_console(160)
    for source in sources:
        form = source.form
        console.print(Text.assemble((source.file, "bold"), f": {form.engine}, {form.about} ({form.page})"))
        words = ("is", "over", "ends", "bonus token")
        table = plain_table(("printed as", "value", *words), left=("printed as", *words))
        for one in source.reading.printed:
            table.add_row(one.name, _number(one.value), one.meaning, one.pooling, one.ends, one.bonus or "–")
        console.print(table)
        for note in source.reading.notes:
            console.print(note)
        found = _findings(source)
        for line in [*said_of(found), *([PAGE] if found else [])]:
            console.print(line)
        console.print()
    titles = ("on one definition", *(f"{source.form.engine}: {Path(source.file).name}" for source in sources))
    table = plain_table(titles, left=titles[:1])
    for row in _side_by_side(sources):
        table.add_row(*row)
    console.print(table)
    for pair in differences:
        said = "they differ" if pair["shown"] else "no difference shown"
        value = interval(pair["value"], pair["low"], pair["high"], 3, "+")  # type: ignore[arg-type]
        console.print(f"α of {pair['a']} − α of {pair['b']}: {value} ({said})")
    for text in dict.fromkeys(one.estimate.interval for one in sources if one.estimate and one.estimate.interval):
        console.print(f"95% intervals: {text}")


def _side_by_side(sources: Sequence[Source]) -> list[list[str]]:
    """A row for each quantity, with every file's value; quantities that no file has are left out."""
    found = [source.estimate for source in sources]
    longest = max((len(one.conditional) for one in found if one is not None), default=0)

    def line(title: str, *values: str | None) -> list[str]:
        return [title, *(value or "–" for value in values)]

    def of(name: str, digits: int = 3) -> list[str | None]:
        values = [None if one is None else getattr(one, name) for one in found]
        return [None if value is None else _number(value, digits) for value in values]

    rows = [
        line("α [95%]", *(None if one is None else _alpha(one) for one in found)),
        line("  by", *(None if one is None else one.method for one in found)),
        line("α if no end is a rejection", *of("alpha_ends")),
        line("tokens per pass, with bonus", *of("length", 2)),
        line("  by Eq. 1 from α", *of("predicted", 2)),
        line("accepted / drafted, pooled", *of("rate")),
        line("accepted / drafted, mean of requests", *of("mean_rate")),
        line("drafted per pass", *of("gamma", 2)),
        line("passes with a draft", *of("passes")),
        line("passes without a draft", *(str(one.undrafted) if one and one.undrafted else None for one in found)),
        line("requests", *of("requests")),
    ]
    for place in range(longest):
        rates = [one.conditional[place] if one and place < len(one.conditional) else None for one in found]
        rows.append(
            line(
                f"accepted at position {place + 1}, if reached",
                *(None if rate is None else f"{rate:.3f}" for rate in rates),
            )
        )
    rows.append(line("ends of completions", *(source.reading.ends for source in sources)))
    best = [source.best for source in sources]
    shown = [None if one is None else f"{one.gamma} ({one.speedup:.2f}×)" for one in best]
    rows.append(line("best γ by Theorem 3.8", *shown))
    return [row for row in rows if any(value != "–" for value in row[1:])]


def _alpha(found: "Estimate") -> str | None:
    if found.alpha is None:
        return None
    return interval(found.alpha, found.low, found.high, 3)


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.0f}" if value == int(value) and (digits == 3 or abs(value) > 100) else f"{value:.{digits}f}"
