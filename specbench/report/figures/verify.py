"""v(n), the cost of verifying n tokens in one pass, in target steps.

From runs, and from `tree.size=auto`, which measures it up to 128 tokens.
"""

import pandas as pd

from specbench.records.frame import Records, measured, short
from specbench.records.schema import Row
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet
from specbench.report.style import FAINT, MARKERS, SERIES, at_end, panels, spread

TITLE = "Cost of verifying n tokens"
WHO = ["target", "hardware", "dtype"]
AXES = (1, 2, 4, 8, 16, 32, 64, 128)


def verify(records: Records) -> Drawn:
    """Draw v(n), the cost of verifying n tokens."""
    frame = measured(pd.concat([records.chains, records.trees], ignore_index=True))
    frame = frame[frame["verify_cost"].notna() | frame["tree"].notna()]
    points = pd.DataFrame([point for row in frame.to_dict("records") for point in _points(records, row)])
    if points.empty:
        return nothing_yet("verify", TITLE)
    figure, (axes,) = panels(width=5.4, height=3.6)
    groups = list(points.groupby(WHO, sort=False))
    top = 1.08 * max(2.0, points["v"].max())
    ends = []
    for number, ((target, hardware, dtype), group) in enumerate(groups):
        colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
        runs, curve = group[group["of"] == "run"], group[group["of"] == "probe"]
        medians = (curve if len(curve) else runs).groupby("n")["v"].median()
        line = "-" if len(curve) else ""
        axes.plot(runs["n"], runs["v"], marker, color=colour, markersize=3, alpha=0.45, zorder=3)
        axes.plot(
            medians.index,
            medians,
            color=colour,
            linewidth=1.4,
            linestyle=line,
            marker=marker if len(curve) else "",
            markersize=4,
        )
        ends.append(
            (float(medians.index[-1]), float(medians.iloc[-1]), f"{target} ({short(hardware)}, {dtype})", colour)
        )
    right = max(x for x, *_ in ends)
    for (_, _, name, colour), place in zip(ends, spread([y for _, y, _, _ in ends], 0.06 * top), strict=True):
        at_end(axes, right, place, name, colour, dx=9)
    axes.axhline(1, color=FAINT, linewidth=0.7, zorder=1)
    axes.set_xscale("log", base=2)
    most = points["n"].max()
    ticks = [n for n in AXES if n <= most]
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.set(ylim=(0, top), xlabel="tokens verified in a pass, n", ylabel="v(n), target steps")
    notes = [
        "Line with marks: trees of n nodes verified at one context length, medians (tree.size=auto). Faint marks: "
        "the median pass of a run, for chains of n = γ + 1 tokens and trees of n nodes on average. A step costs 1",
        *captions(frame, "gamma"),
    ]
    return Drawn("verify", TITLE, figure, points, notes)


def _points(records: Records, row: Row) -> list[Row]:
    who = {key: row[key] for key in (*WHO, "run_id")}
    tree, found = row["tree"], list[Row]()
    if pd.notna(tree) and "auto" in str(tree):
        curve = records.whole(row["run_id"])["gamma"].get("verify", {})
        found = [who | {"of": "probe", "n": int(size), "v": cost} for size, cost in curve.items()]
    n = row["gamma"] + 1 if pd.isna(tree) else round(row["nodes_per_pass"]) + 1
    if pd.notna(n) and pd.notna(row["verify_cost"]):
        found.append(who | {"of": "run", "n": int(n), "v": row["verify_cost"]})
    return found
