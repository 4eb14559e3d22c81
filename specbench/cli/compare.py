"""`specbench compare`: two runs over the prompts they share, or with --baseline all records against a file."""

from pathlib import Path
from typing import Literal

from specbench.analysis.paired import PairedRecord
from specbench.cli.check import MARGIN, add_baseline, check
from specbench.cli.formats import print_rows
from specbench.cli.options import RUN, options
from specbench.errors import UserError
from specbench.records import identity
from specbench.records.schema import RunRecord

Differing = dict[str, tuple[object, object]]
MACHINE: tuple[Literal["hardware", "engine"], ...] = ("hardware", "engine")
RESAMPLES = 2000
SEED = 0
# The quantities compared: attribute, title, value of no difference, unit, remark.
Measure = Literal["speedup", "faster", "alpha", "tokens_per_pass"]
LINES: tuple[tuple[Measure, str, float, str, str], ...] = (
    ("speedup", "speedup A / B", 1.0, "×", "each against its own baseline"),
    ("faster", "tokens a second A / B", 1.0, "×", "as decoded, on that machine and day"),
    ("alpha", "α of A − α of B", 0.0, "", "along the target's completions"),
    ("tokens_per_pass", "tokens per pass A / B", 1.0, "×", ""),
)


def main(argv: list[str]) -> int:
    """Run `specbench compare` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    about = "Run A against run B over their common prompts: paired differences, 95% intervals."
    parser = options("compare", about, rows=True)
    parser.add_argument("runs", metavar="RUN", nargs="*", help=f"A and B, each {RUN}")
    add_baseline(parser)
    arguments = parser.read(argv)
    if arguments.baseline is not None:
        if arguments.runs or arguments.format != "table":
            raise UserError(f"{[*arguments.runs, '--format'][0]}: does not go with --baseline, which is of all records")
        margin = MARGIN if arguments.margin is None else arguments.margin
        return check(arguments.results, Path(arguments.baseline), margin, arguments.write)
    if arguments.write or arguments.margin is not None:
        raise UserError(f"{'--write' if arguments.write else '--margin'}: requires --baseline FILE")
    if len(arguments.runs) != 2:
        raise UserError("compare: give two runs, specbench compare RUN RUN, or --baseline FILE")
    from specbench.analysis.costs.disturbance import disturbance
    from specbench.analysis.paired import compare, shared
    from specbench.records.catalog import Catalog

    catalog = Catalog(arguments.results)
    ids = [catalog.find(name) for name in arguments.runs]
    first, second = (catalog.whole(run_id) for run_id in ids)
    pairs = shared(first["prompts"], second["prompts"])
    if not pairs:
        raise UserError(f"{ids[0]} and {ids[1]} share no prompt; compare runs of the same task")
    paired = compare(pairs, RESAMPLES, SEED).to_json()
    others = differing(first, second)
    disturbed = ["; ".join(disturbance(one["prompts"], one["summary"]).signs) for one in (first, second)]
    ran = [_ran(one) for one in (first, second)]
    rows = [
        {"measure": key, **paired[key], "higher": verdict(paired[key]["low"], paired[key]["high"], none), "a": ids[0],
         "b": ids[1], "prompts": paired["prompts"]}
        for key, _, none, *_ in LINES
    ]  # fmt: skip
    document = {"a": ids[0], "b": ids[1], "differ_in": others, **paired}
    print_rows(arguments.format, rows, lambda: _show(ids, ran, disturbed, paired, others), document=document)
    return 0


def differing(a: RunRecord, b: RunRecord) -> Differing:
    """The differences of two runs besides draft and gamma: keys of the run (None for a default), and the machine."""
    keys = identity.differing(a["config"], b["config"]).items()
    found = {key: values for key, values in keys if key != "gamma" and not key.startswith("draft.")}
    for name in MACHINE:
        found.pop(name, None)  # 'auto' and what it became are one engine
        if a["summary"][name] != b["summary"][name]:
            found[name] = a["summary"][name], b["summary"][name]
    return found


def verdict(low: float | None, high: float | None, none: float) -> str:
    """Which of the two the interval is in favour of."""
    if low is None or high is None:
        return "one prompt tells nothing"
    if low > none:
        return "A"
    return "B" if high < none else "no difference shown"


def _least(detectable: float | None, none: float) -> str:
    """The smallest difference that would have shown: of ratios as a share."""
    if detectable is None:
        return "–"
    return f"±{detectable:.3f}" if none == 0 else f"±{100 * detectable:.1f}%"


def _ran(record: RunRecord) -> str:
    """Engine, dtype and device of a run, as they were and not as they were asked for."""
    summary = record["summary"]
    asked = record["config"].get("engine")
    engine = f"engine {summary['engine']}" + (" (auto)" if asked == "auto" else "")
    return f"{engine}, {summary['dtype']} on {summary['device']}"


def _show(ids: list[str], ran: list[str], disturbed: list[str], paired: PairedRecord, others: Differing) -> None:
    from rich.table import Table

    from specbench.report.terminal import terminal
    from specbench.stats import FEW_PROMPTS

    console = terminal()
    console.width = max(console.width, 120)
    for name, run_id, how in zip("AB", ids, ran, strict=True):
        console.print(f"{name}  {run_id}  ({how})")
    console.print(f"{paired['prompts']} prompts in both")
    for name, seen in zip("AB", disturbed, strict=True):
        if seen:
            console.print(f"{name} was disturbed, so its times are unreliable: {seen}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "value", "95%", "higher", "could show", ""):
        table.add_column(title, justify="right" if title in ("value", "95%", "could show") else "left")
    for key, title, none, unit, remark in LINES:
        one = paired[key]
        between = "–" if one["low"] is None else f"{one['low']:.3f}–{one['high']:.3f}"
        if none == 0 and one["low"] is not None:
            between = f"{one['low']:+.3f} to {one['high']:+.3f}"
        value = f"{one['value']:+.3f}" if none == 0 else f"{one['value']:.3f}{unit}"
        higher, least = verdict(one["low"], one["high"], none), _least(one["detectable"], none)
        table.add_row(title, value, between, higher, least, remark)
    console.print(table)
    console.print("could show: the smallest difference that these prompts would have shown nine times in ten")
    for name, (left, right) in others.items():
        console.print(f"they differ in {name} too: {left} and {right}")
    if paired["prompts"] < FEW_PROMPTS:
        console.print(f"{paired['prompts']} prompts only: the intervals are rough")
