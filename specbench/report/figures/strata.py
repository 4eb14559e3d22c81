"""alpha by kind of prompt, length of context and position in the completion."""

import pandas as pd
from matplotlib.axes import Axes

from specbench.records.frame import Records
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet, pair_name
from specbench.report.parts import BY, MOST_RUNS, chosen_runs, parts
from specbench.report.style import MARKERS, PAPER, SERIES, panels

NAME, TITLE = "strata", "α by kind of prompt, length of context and position in the completion"


def figure(records: Records) -> Drawn:
    """Draw a panel for each way to divide the prompts, and a point with its 95% interval for each part of each run.

    Runs whose prompts have categories come first.
    """
    chosen = chosen_runs(records)
    if chosen.empty:
        return nothing_yet(NAME, TITLE)
    values = parts(records, chosen)
    shown = [by for by in BY if not values[values["by"] == by].empty]
    drawn, axes = panels(len(shown), width=0.7 + 2.6 * len(shown), height=3.2)
    drawn.set_layout_engine("constrained")
    for panel, by in zip(axes, shown, strict=True):
        _panel(panel, chosen, values[values["by"] == by])
        panel.set_xlabel(BY[by])
    axes[0].set_ylabel(r"$\alpha$")
    lines, labels = axes[-1].get_legend_handles_labels()
    drawn.legend(lines, labels, frameon=False, fontsize=8, loc="outside upper center", ncols=MOST_RUNS)
    notes = [
        "Points: α of the tokens in that part, with 95% intervals over prompts; the table `strata` has the number of "
        "prompts, tokens per pass and speedup of each. `specbench results --by category` prints them for every run",
        *captions(chosen, NAME),
    ]
    return Drawn(NAME, TITLE, drawn, values, notes)


def _panel(axes: Axes, chosen: pd.DataFrame, values: pd.DataFrame) -> None:
    groups = sorted(set(values["group"]), key=_first)
    for index, (_, record) in enumerate(chosen.iterrows()):
        own = values[values["run_id"] == record["run_id"]]
        x = [groups.index(group) + 0.12 * (index - (len(chosen) - 1) / 2) for group in own["group"]]
        alpha = own["alpha"].astype(float)
        low, high = own["low"].astype(float).fillna(alpha), own["high"].astype(float).fillna(alpha)
        axes.errorbar(
            x, alpha, yerr=[alpha - low, high - alpha], fmt=MARKERS[index % len(MARKERS)], linestyle="none",
            color=SERIES[index % len(SERIES)], elinewidth=0.8, markersize=4, label=pair_name(record),
            markerfacecolor=PAPER if record["simulated"] else SERIES[index % len(SERIES)],
        )  # fmt: skip
    named = [group.replace("_", " ").replace("-", "–") for group in groups]
    axes.set_xticks(range(len(groups)), named, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set(ylim=(0, 1.02), xlim=(-0.5, len(groups) - 0.5))


def _first(group: str) -> tuple[int, str]:
    """Ranges by their first number, kinds by their name."""
    number = group.partition("-")[0]
    return (int(number) if number.isdecimal() else 0, group)
