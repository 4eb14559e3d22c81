"""Speedup against gamma for each draft: predicted, calibrated with the verify cost, and measured."""

import pandas as pd
from matplotlib.axes import Axes

from specbench.records.frame import MACHINE, PAIR, Records, one_sample
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet, pair_name
from specbench.report.style import BLUE, FAINT, INK, PAPER, VERMILLION, at_end, panels, spread

TITLE = "Speedup against γ"
LINES = {
    "speedup_predicted": ("predicted", FAINT, (0, (4, 2))),
    "speedup_calibrated": ("calibrated", VERMILLION, (0, (1, 1.5))),
    "speedup_measured": ("measured", BLUE, "solid"),
}
MOST_PANELS = 6


def gamma(records: Records) -> Drawn:
    """Draw speedup against gamma: predicted, calibrated, measured."""
    groups = _pairs(records.paper_runs)
    if not groups:
        return nothing_yet("gamma", TITLE)
    columns = min(3, len(groups)) if len(groups) != 4 else 2
    rows = -(-len(groups) // columns)
    figure, axes = panels(columns, width=0.6 + 2.45 * columns, height=0.3 + 2.25 * rows, rows=rows)
    drawn = pd.concat(groups)
    top = max(1.15, 1.06 * drawn[["speedup_predicted", "speedup_high", "speedup_calibrated"]].max().max())
    for panel, group in zip(axes, groups, strict=False):
        _panel(panel, group, top)
    for panel in axes[len(groups) :]:
        panel.set_axis_off()
    for index, panel in enumerate(axes[: len(groups)]):
        panel.set_xlabel(r"$\gamma$" if index + columns >= len(groups) else "")
        panel.set_ylabel("speedup" if index % columns == 0 else "")
    kept = [
        *PAIR, "gamma", *MACHINE, "alpha", "c", "verify_cost", "speedup_predicted", "speedup_calibrated",
        "speedup_measured", "speedup_low", "speedup_high", "run_id",
    ]  # fmt: skip
    notes = [
        "Predicted: Theorem 3.8 at the run's α and c. Calibrated: with the measured cost of verifying and accepting "
        "in place of 1; by position in-sample, from the acceptance and the cost of the same passes. Measured: decoding "
        "time a token, with 95% interval",
        *captions(drawn, "gamma"),
    ]
    return Drawn("gamma", TITLE, figure, drawn[kept], notes)


def _pairs(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The pairs with three gammas or more; those with the most gammas first, greedy before sampled."""
    groups = [
        group.sort_values("gamma")
        for _, group in one_sample(frame).groupby([*PAIR, "top_k", "top_p", *MACHINE], dropna=False)
        if group["gamma"].nunique() >= 3
    ]
    groups.sort(key=lambda group: (-len(group), group["temperature"].iloc[0], -group["alpha"].iloc[0]))
    return groups[:MOST_PANELS]


def _panel(axes: Axes, group: pd.DataFrame, top: float) -> None:
    last = group["gamma"].max()
    ends = [float(group[column].dropna().iloc[-1]) if group[column].notna().any() else 0.0 for column in LINES]
    places = spread(ends, top * 0.075)
    for (column, (name, colour, dashes)), place in zip(LINES.items(), places, strict=True):
        known = group.dropna(subset=[column])
        if known.empty:
            continue
        axes.plot(known["gamma"], known[column], color=colour, linestyle=dashes, linewidth=1.4)
        at_end(axes, last, place, name, colour)
    known = group.dropna(subset=["speedup_measured", "speedup_low"])
    axes.errorbar(
        known["gamma"], known["speedup_measured"],
        yerr=[known["speedup_measured"] - known["speedup_low"], known["speedup_high"] - known["speedup_measured"]],
        fmt="o", color=BLUE, markerfacecolor=PAPER if group["simulated"].any() else BLUE, markersize=4, elinewidth=0.9,
    )  # fmt: skip
    axes.axhline(1, color=INK, linewidth=0.7, zorder=1)
    first = group.iloc[0]
    axes.set_title(rf"{pair_name(first)} ($\alpha={first['alpha']:.2f}$)")
    axes.set_ylim(0, top)
    axes.set_xticks(group["gamma"].tolist())
