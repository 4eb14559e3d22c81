"""Predicted and measured speedups of every record, and what a lossy rule gains for what it loses."""

import pandas as pd
from matplotlib.axes import Axes

from specbench.formatting import draft_name
from specbench.records.frame import MACHINE, PAIR, Records
from specbench.records.passes_run import IN_C, IN_PYTHON, VERIFIED_IN_C
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet, under_all
from specbench.report.style import (
    BLUE,
    FAINT,
    GREEN,
    MARKERS,
    NARROW,
    PAPER,
    SERIES,
    VERMILLION,
    WIDE,
    panels,
    with_intervals,
)

TITLE = "Predicted and measured speedup of every chain"
PANELS = {"speedup_predicted": "predicted, Theorem 3.8", "speedup_calibrated": "calibrated, with v and the loop"}
LOOPS = {
    IN_C: (BLUE, "o", "whole passes in C"),
    VERIFIED_IN_C: (GREEN, "D", "drafted in Python, verified in C"),
    IN_PYTHON: (VERMILLION, "s", "passes in Python"),
}
TICKS = (0.25, 0.5, 1, 2, 4, 8)
KEPT = [*PAIR, "gamma", "accept", *MACHINE, "alpha", "c", "verify_cost", "overhead", "passes_run", *PANELS]
KEPT += ["speedup_measured", "speedup_low", "speedup_high", "run_id"]


def predictions(records: Records) -> Drawn:
    """Draw the measured speedup of every chain against Theorem 3.8's, and against the calibrated one."""
    frame = records.chains.dropna(subset=[*PANELS, "speedup_measured"])
    if frame.empty:
        return nothing_yet("predictions", TITLE)
    figure, axes = panels(2, width=WIDE, height=4.0)
    ends = frame[[*PANELS, "speedup_measured"]].to_numpy(float)
    low, high = 0.9 * ends.min(), 1.1 * ends.max()
    for panel, (name, label) in zip(axes, PANELS.items(), strict=True):
        panel.plot([low, high], [low, high], color=FAINT, linewidth=0.8, zorder=1, label="measured = predicted")
        for loop, (colour, marker, said) in LOOPS.items():
            of = frame[frame["passes_run"] == loop]
            for simulated, part in of.groupby(of["simulated"].astype(bool)):
                panel.plot(
                    part[name], part["speedup_measured"], marker, color=colour, markersize=3.5, alpha=0.7,
                    markerfacecolor=PAPER if simulated else colour, linestyle="", zorder=3,
                    label=said + (" (simulated acceptance)" if simulated else ""),
                )  # fmt: skip
        panel.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel=label)
        shown = [tick for tick in TICKS if low <= tick <= high]
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_ticks(shown, [f"{tick:g}" for tick in shown])
            axis.set_ticks([], minor=True)
        panel.set_aspect("equal")
    axes[0].set_ylabel("measured")
    under_all(figure, axes[:1])
    notes = [
        "On the line the prediction holds. Below it a run is slower than predicted. Theorem 3.8 takes a pass over "
        "γ + 1 tokens to cost one target step and the loop to cost nothing",
        "Calibrated: with the costs of the same run, so that it tests the form of the prediction and is no forecast",
        "Records of drafts whose acceptance falls with the position are predicted from the acceptance at each position "
        "of the same run, in both panels",
        *(f"{label}: {_errors(frame, name)}" for name, label in PANELS.items()),
        *captions(frame, "gamma"),
    ]
    return Drawn("predictions", TITLE, figure, frame[KEPT], notes)


def _errors(frame: pd.DataFrame, name: str) -> str:
    """How far the prediction `name` is off, by where passes ran."""
    said = []
    for loop in LOOPS:
        of = frame[frame["passes_run"] == loop]
        if len(of):
            off = (of[name] / of["speedup_measured"] - 1).abs()
            typical, most = off.median(), off.quantile(0.9)
            said.append(f"{len(of)} records {loop}: {typical:.0%} off in the median, at most {most:.0%} in nine of ten")
    return "; ".join(said)


LOSSY_TITLE = "Speed against loss of lossy rules"


def lossy(records: Records) -> Drawn:
    """Draw the measured speedup of lossy rules over the total variation from the target, Algorithm 1 at zero.

    A line for each pair, rule and γ.
    """
    runs = records.chains.dropna(subset=["gamma", "speedup_measured"])
    names = ["total_variation", "speedup_measured", "speedup_low", "speedup_high"]
    lost = runs[runs["lossy"].astype(bool)]
    lost = lost.dropna(subset=names) if "total_variation" in lost else lost.iloc[:0]
    if lost.empty:
        return nothing_yet("lossy", LOSSY_TITLE)
    lost = lost.assign(name=[_name(row) for _, row in lost.iterrows()])
    styles = {name: number for number, name in enumerate(dict.fromkeys(lost["name"]))}
    temperatures = sorted(lost["temperature"].unique())
    figure, axes = panels(width=NARROW, height=0.9 + 2.2 * len(temperatures), rows=len(temperatures))
    points = []
    for panel, temperature in zip(axes, temperatures, strict=True):
        of = lost[lost["temperature"] == temperature]
        for (name, *_), line in of.groupby(["name", *PAIR, *MACHINE], dropna=False, sort=False):
            line = pd.concat([_lossless(runs, line.iloc[0]), line]).sort_values("total_variation")
            points.append(line)
            _line(panel, line, str(name), styles[name])
        panel.axhline(1, color=FAINT, linewidth=0.7, zorder=1)
        panel.set(ylabel="measured speedup", ylim=(0, None))
        panel.set_title(f"T={temperature:g}")
    axes[-1].set_xlabel("total variation per token from the target")
    under_all(figure, axes)
    values = pd.concat(points)
    kept = [*PAIR, "gamma", "accept", *MACHINE, "passes_run", *names, "quality_metric", "quality_baseline"]
    notes = [
        "Points: runs with 95% intervals over prompts. A line joins the settings of one rule for one draft and γ. It "
        "begins at Algorithm 1, which loses nothing, if both are known to run their passes in the same loop. The "
        "CSV has the scores of the completions",
        *captions(values, "beyond"),
    ]
    return Drawn("lossy", LOSSY_TITLE, figure, values[[*kept, "quality_speculative", "run_id"]], notes)


def _name(row: "pd.Series[object]") -> str:
    """A line's name: draft, rule and γ."""
    return f"{draft_name(str(row['draft']))}, {str(row['accept']).partition(' ')[0]}, $\\gamma={row['gamma']:g}$"


def _lossless(runs: pd.DataFrame, row: "pd.Series[object]") -> pd.DataFrame:
    """The newest run of the same pair and γ by Algorithm 1 whose passes are known to run in the loop of `row`'s."""
    same = runs[(runs["accept"] == "exact") & ~runs["passes_guessed"].astype(bool)]
    if row["passes_guessed"]:
        return same.iloc[:0]
    for key in (*PAIR, "gamma", *MACHINE, "passes_run", "prompts"):
        same = same[same[key] == row[key]]
    return same.sort_values("created").tail(1).assign(total_variation=0.0)


def _line(axes: Axes, line: pd.DataFrame, name: str, style: int) -> None:
    with_intervals(
        axes, line["total_variation"], line["speedup_measured"], line["speedup_low"], line["speedup_high"],
        fmt=MARKERS[style % len(MARKERS)], linestyle="-", linewidth=1, color=SERIES[style % len(SERIES)], markersize=4,
        elinewidth=0.7, label=name,
    )  # fmt: skip
