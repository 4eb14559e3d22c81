"""Runs against each other: `specbench compare RUN RUN`, and `specbench results --group-by`."""

import math
from typing import TYPE_CHECKING, Any, Literal

from specbench.analysis.paired import Compared, Paired
from specbench.cli.formats import print_rows
from specbench.cli.options import RUN, options
from specbench.cli.regression import add_regression, check_regression, require_regression
from specbench.errors import UserError
from specbench.formatting import NONE, span
from specbench.nouns import with_noun
from specbench.recorded import to_json
from specbench.records import store
from specbench.records.catalog import Catalog
from specbench.records.run_record import RunRecord
from specbench.records.served import is_served
from specbench.report.console import plain_table, wide_console

if TYPE_CHECKING:
    pass

NO_INTERVAL = "one prompt tells nothing"
Differing = dict[str, tuple[object, object]]
MACHINE: tuple[Literal["hardware", "engine"], ...] = ("hardware", "engine")
# The quantities compared: attribute, title, value of no difference, unit, remark.
Measure = Literal["speedup", "faster", "alpha", "tokens_per_pass"]
LINES: tuple[tuple[Measure, str, float, str, str], ...] = (
    ("speedup", "speedup A / B", 1.0, "×", "each against its own baseline"),
    ("faster", "tokens per second A / B", 1.0, "×", "as decoded, on that machine and day"),
    ("alpha", "α of A − α of B", 0.0, "", "along the target's completions"),
    ("tokens_per_pass", "tokens per pass A / B", 1.0, "×", ""),
)


def main(argv: list[str]) -> int:
    """Run `specbench compare` with the words `argv`."""
    about = "Run A against run B over their common prompts: paired differences, 95% intervals."
    parser = options("compare", about, rows=True)
    parser.add_argument("runs", metavar="RUN", nargs="*", help=f"A and B, each {RUN}")
    add_regression(parser)
    arguments = parser.read(argv)
    if arguments.baseline is not None or arguments.history:
        return check_regression(arguments)
    require_regression(arguments)
    if len(arguments.runs) != 2:
        raise UserError("compare: give two runs, specbench compare RUN RUN, or --baseline FILE, or --history")
    from specbench.analysis.costs.disturbance import disturbance
    from specbench.analysis.costs.slow import differ, slow
    from specbench.analysis.paired import compare, shared

    catalog = Catalog(arguments.results)
    ids, found = list[str](), list[RunRecord]()
    for name in arguments.runs:  # one after the other: two files may hold records of one id
        ids.append(catalog.find(name))
        found.append(catalog.whole(ids[-1]))
    first, second = found
    if first == second:
        raise UserError(
            f"compare: {' and '.join(arguments.runs)} are one record, {ids[0]}; 'specbench results' lists all"
        )
    if ids[0] == ids[1]:
        ids = list(arguments.runs)
    pairs = shared(first["prompts"], second["prompts"])
    if not pairs:
        raise UserError(f"{ids[0]} and {ids[1]} share no prompt; compare runs of the same task")
    paired = compare(pairs)
    others = differing(first, second)
    runs = [
        (_ran(one), "" if is_served(one) else "; ".join(disturbance(one["prompts"], one["summary"]).signs))
        for one in (first, second)
    ]
    rows = []
    for key, _, none, *_ in LINES:
        one: Compared = getattr(paired, key)
        of_pair = {"a": ids[0], "b": ids[1], "prompts": paired.prompts}
        rows.append({"measure": key, **to_json(one), "higher": verdict(one.low, one.high, none), **of_pair})
    seen = not (is_served(first) or is_served(second))  # of a server no step and no pass is
    uneven = differ(slow(first["prompts"]), slow(second["prompts"])) if seen else []
    document = {"a": ids[0], "b": ids[1], "differ_in": others, "uneven": uneven, **to_json(paired)}
    print_rows(arguments.format, rows, lambda: _draw(ids, runs, paired, others, uneven), document=document)
    return 0


def differing(a: RunRecord, b: RunRecord) -> Differing:
    """The differences of two runs besides draft and gamma: keys of the run (None for a default), and the machine."""
    keys = store.differing(a["config"], b["config"]).items()
    found = {key: values for key, values in keys if key != "gamma" and not key.startswith("draft.")}
    for name in MACHINE:
        found.pop(name, None)  # 'auto' and what it became are one engine
        if a["summary"][name] != b["summary"][name]:
            found[name] = a["summary"][name], b["summary"][name]
    return found


def verdict(low: float | None, high: float | None, none: float) -> str:
    """The run that the interval favours, or why neither."""
    if low is None or high is None:
        return NO_INTERVAL
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
    if is_served(record):
        verdict: Any = dict(summary)["verdict"]
        return f"server {summary['engine']}, {verdict}"
    asked = record["config"].get("engine")
    engine = f"engine {summary['engine']}" + (" (auto)" if asked == "auto" else "")
    return f"{engine}, {summary['dtype']} on {summary['device']}"


def _draw(ids: list[str], runs: list[tuple[str, str]], paired: Paired, others: Differing, uneven: list[str]) -> None:
    """Print the comparison of A and B; `runs` says of each where it ran, and the signs that it was disturbed."""
    from specbench.stats import FEW_PROMPTS

    console = wide_console()
    for name, run_id, (where, _) in zip("AB", ids, runs, strict=True):
        console.print(f"{name}  {run_id}  ({where})")
    console.print(f"{with_noun(paired.prompts, 'prompt')} in both")
    for name, (_, signs) in zip("AB", runs, strict=True):
        if signs:
            console.print(f"{name} ran on a contended machine, so its times are unreliable: {signs}")
    for line in uneven:
        console.print(f"{line}: a part of the difference in times is the machine's")
    table = plain_table(("", "value", "95%", "higher", "could show", ""), left=("", "higher"))
    for key, title, none, unit, remark in LINES:
        one: Compared = getattr(paired, key)
        if math.isnan(one.value):
            table.add_row(title, NONE, NONE, NONE, NONE, "not known of a server that does not show it")
            continue
        form, between = ("+.3f", " to ") if none == 0 else (".3f", "–")
        interval, value = span(one.low, one.high, form, between), f"{one.value:{form}}{unit}"
        higher, least = verdict(one.low, one.high, none), _least(one.detectable, none)
        table.add_row(title, value, interval, higher, least, remark)
    console.print(table)
    console.print("could show: the smallest difference that these prompts would have shown nine times in ten")
    for name, (left, right) in others.items():
        console.print(f"they also differ in {name}: {left} and {right}")
    if paired.prompts < FEW_PROMPTS:
        console.print(f"{with_noun(paired.prompts, 'prompt')} only: the intervals are rough")
