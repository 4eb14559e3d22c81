"""α over time of a draft that learns while it serves, beside the same prompts without learning."""

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.records.frame import Records
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet
from specbench.report.learning import WINDOW, Panel, panels
from specbench.report.style import FAINT, INK, SERIES
from specbench.report.style import panels as axes_of

TITLE = "α over time of a draft that learns while it serves"
MOST_PANELS, MOST_SHIFTS = 6, 3


def online(records: Records) -> Drawn:
    """Draw α along the prompts, a panel for each pair and order, a line for each learning rate."""
    found = panels(records)[:MOST_PANELS]
    if not found:
        return nothing_yet("online", TITLE)
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    figure, axes = axes_of(columns, width=0.7 + 3.4 * columns, height=0.75 + 2.6 * rows, rows=rows)
    figure.set_layout_engine("constrained")
    rates = sorted({rate for panel in found for rate in panel.runs["learning_rate"]})
    drawn: dict[str, Line2D] = {}
    for panel, of_panel in zip(axes, found, strict=False):
        drawn |= _draw(panel, of_panel, rates)
    named = {label: drawn[label] for label in map(_label, rates)}
    figure.legend(
        named.values(), named.keys(), loc="outside upper left", ncols=len(named), frameon=False, fontsize=8
    )  # fmt: skip
    for unused in axes[len(found) :]:
        unused.set_visible(False)
    points = pd.concat(panel.points for panel in found)
    runs = pd.concat(panel.runs for panel in found)
    notes = [
        f"Lines: α of the last {WINDOW} prompts. Grey: learning rate 0, the same prompts without learning. Dotted: "
        "the kind of prompt changes",
        *(_said(panel) for panel in found),
        *captions(runs, "online"),
    ]
    return Drawn("online", TITLE, figure, points, notes)


def _label(rate: float) -> str:
    return f"learning rate {rate:g}" if rate else "no learning"


def _draw(axes: Axes, panel: Panel, rates: Sequence[float]) -> dict[str, Line2D]:
    """Draw a panel; a rate's colour depends on its place among `rates`. Returns the lines by their labels."""
    lines = {}
    for rate, points in panel.points.groupby("learning_rate", sort=True):
        colour = SERIES[rates.index(rate) % len(SERIES)] if rate else FAINT
        (lines[_label(rate)],) = axes.plot(points["prompt"], points["alpha_window"], color=colour)
    first = panel.points[panel.points["run_id"] == panel.points["run_id"].iloc[0]]
    kinds = list(zip(first["prompt"], first["category"], strict=True))
    shifts = [place for (_, before), (place, kind) in pairwise(kinds) if kind != before and kind is not None]
    for place in shifts if len(shifts) <= MOST_SHIFTS else []:
        axes.axvline(place - 0.5, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
    axes.set(xlabel="prompt", ylabel=r"$\alpha$", title=panel.title)
    return lines


def _said(panel: Panel) -> str:
    """'α on the last third of the prompts: .61 at learning rate 0, .66 at 0.003'."""
    last = ", ".join(f"{row['alpha_last']:.3f} at rate {row['learning_rate']:g}" for _, row in panel.runs.iterrows())
    learnt = panel.runs[panel.runs["learning_rate"] > 0].iloc[-1]
    title = panel.title.replace("\n", ", ")
    return (
        f"{title}: α on the last third of the prompts {last}; {learnt['learnt_positions']:.0f} tokens learnt "
        f"from in {learnt['learning_s']:.0f} s"
    )
