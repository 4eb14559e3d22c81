"""Each config over commits: every quantity relative to its first measurement, and where it stepped."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from specbench.analysis.changepoints import StepOf
from specbench.analysis.changes import FALSE_ALARMS
from specbench.records.measurements import QUANTITIES, Measurement, Quantity
from specbench.report.figure import Drawn
from specbench.report.style import FAINT, MARKERS, PAPER, SERIES, at_end, panels, spread

TITLE = "Each config over commits"
TITLES: dict[Quantity, str] = {"alpha": r"$\alpha$", "tokens_per_pass": "tokens per pass"}
MOST_COMMITS = 8  # that are named on an axis; the CSV has all
MOST_NAMED = 6  # configs with a step that are drawn in colour and named in a panel, the most certain first


def draw(histories: Sequence[Sequence[Measurement]], steps: Sequence[StepOf]) -> Drawn:
    """Draw the history of each config on each machine, oldest measurement first, and mark the steps."""
    points = _points(histories)
    names = [name for name in QUANTITIES if (points["quantity"] == name).any()]
    columns = 2 if len(names) > 1 else 1
    rows = -(-len(names) // columns)
    figure, axes = panels(columns, width=4.6 * columns, height=2.2 * rows + 0.4, rows=rows)
    commits = list(dict.fromkeys(points.sort_values("created")["commit"]))
    for panel in axes[len(names) :]:
        panel.set_visible(False)
    for panel, name in zip(axes, names, strict=False):
        marked = sorted((one for one in steps if one.quantity == name), key=lambda one: one.q)
        _panel(panel, points[points["quantity"] == name], marked, commits)
        panel.set_title(TITLES.get(name, name))
    notes = [
        f"A line is a config on a machine: {points['id'].nunique()} of them, {len(commits)} commits, {len(steps)} "
        f"steps. Hollow marks: the first measurement after a step, for the {MOST_NAMED} configs of a panel whose steps "
        f"are most certain. Without any change, the probability of a single step is at most {FALSE_ALARMS:.0%}"
    ]
    return Drawn("history", TITLE, figure, points, notes)


def _panel(axes: Axes, points: pd.DataFrame, steps: Sequence[StepOf], commits: Sequence[str]) -> None:
    """One quantity: the configs with the most certain steps in colour and named, all others faint."""
    coloured = list(dict.fromkeys(one.first["id"] for one in steps))[:MOST_NAMED]
    ends = []
    for digest, line in points.groupby("id", sort=False):
        xs, ys = [commits.index(one) for one in line["commit"]], list(line["percent"])
        if digest not in coloured:
            axes.plot(xs, ys, ".-", color=FAINT, linewidth=0.6, markersize=2.5, alpha=0.5, zorder=2)
            continue
        number = coloured.index(digest)
        colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
        axes.plot(xs, ys, f"{marker}-", color=colour, linewidth=1.2, markersize=3.5, zorder=4)
        firsts = {one.first["created"] for one in steps if one.first["id"] == digest}
        for x, y in [(x, y) for x, y, day in zip(xs, ys, line["created"], strict=True) if day in firsts]:
            axes.plot([x], [y], marker, color=PAPER, markeredgecolor=colour, markersize=7, zorder=5)
        ends.append((xs[-1], ys[-1], _name(line["run_id"].iloc[-1]), colour))
    low, high = axes.get_ylim()
    places = spread([y for _, y, *_ in ends], 0.09 * (high - low))
    for (x, _, text, colour), place in zip(ends, places, strict=True):
        at_end(axes, x, place, text, colour, dx=8)
    axes.axhline(0, color=FAINT, linewidth=0.6, zorder=1)
    named = range(0, len(commits), -(-len(commits) // MOST_COMMITS))
    axes.set_xticks(named, [commits[place][:7] for place in named], rotation=60, ha="right", fontsize=7)
    axes.set(xlim=(-0.3, max(1, len(commits) - 1) + 0.3), ylabel="% of the first")


def _points(histories: Sequence[Sequence[Measurement]]) -> pd.DataFrame:
    """A row for each quantity of each measurement; `percent`: above the first measurement of its config."""
    rows = []
    for history in histories:
        first: dict[Quantity, float] = {}
        for one in history:
            for name, (value, low, high) in one["quantities"].items():
                start = first.setdefault(name, value)
                rows.append({
                    "id": one["id"], "run_id": one["run_id"], "commit": one["commit"] or "no commit",
                    "created": one["created"], "hardware": one["hardware"], "quantity": name, "value": value,
                    "low": low, "high": high, "percent": 100 * (value / start - 1) if start else 0.0,
                })  # fmt: skip
    return pd.DataFrame(rows)


def _name(run_id: str) -> str:
    """A run's id without its digest."""
    return run_id.rpartition("-")[0]
