"""A recommendation as a figure: the estimated speedup of each draft over gamma, and the speedups of real runs."""

import pandas as pd
from matplotlib.axes import Axes

from specbench.records.documents import RecommendDocument, Verified
from specbench.records.schema import Row
from specbench.report.figure import Drawn
from specbench.report.style import BLUE, FAINT, INK, PAPER, VERMILLION, at_end, panels, spread

MOST_PANELS = 4


def choosing(record: RecommendDocument, name: str = "choosing") -> Drawn:
    """`record` is that of `specbench recommend`. Drafts come in the order of their best gamma."""
    rows = _rows(record)
    drafts = list(dict.fromkeys(row["candidate"] for row in record["rows"]))[:MOST_PANELS]
    figure, axes = panels(len(drafts), width=0.8 + 2.4 * len(drafts), height=2.7)
    highs = rows[["predicted", "estimated", "estimated_high", "measured_high"]].max().max()
    top = max(1.15, 1.05 * min(float(highs), 1.5 * float(rows["estimated"].max())))
    for panel, draft in zip(axes, drafts, strict=True):
        _panel(panel, rows[rows["draft"] == draft].sort_values("gamma"), top)
    axes[0].set_ylabel("speedup")
    notes = [
        f"{record['target']} on {record['task']}, T={record['temperature']:g}, {record['dtype']}, {record['hardware']}",
        "Predicted: Theorem 3.8. Estimated: tokens over the cost of the passes that the target's completions need, "
        "with 95% interval. Measured: real runs, with 95% interval",
        *(f"{one['run_id']}: {one['unproved']}" for one in record["verified"] if one.get("unproved")),
    ]
    return Drawn(name, "Which draft, which γ", figure, rows, notes)


def _rows(record: RecommendDocument) -> pd.DataFrame:
    proofs = {(one["candidate"], one["gamma"]): one for one in record["verified"]}
    rows = []
    for row in record["rows"]:
        proof: Verified | Row = proofs.get((row["candidate"], row["gamma"]), {})
        rows.append({
            "draft": row["candidate"], "gamma": row["gamma"], "alpha": row["alpha"]["value"], "c": row["cost"]["c"],
            "predicted": row["predicted"], "estimated": row["estimated"]["value"],
            "estimated_low": row["estimated"]["low"], "estimated_high": row["estimated"]["high"],
            "measured": proof.get("measured"), "measured_low": proof.get("measured_low"),
            "measured_high": proof.get("measured_high"), "run_id": proof.get("run_id"),
        })  # fmt: skip
    frame = pd.DataFrame(rows)
    numbers = [column for column in frame if column not in ("draft", "run_id")]
    frame[numbers] = frame[numbers].astype(float)
    return frame


def _panel(axes: Axes, group: pd.DataFrame, top: float) -> None:
    known = group.dropna(subset=["estimated_low"])
    axes.fill_between(
        known["gamma"], known["estimated_low"], known["estimated_high"], color=VERMILLION, alpha=0.15, linewidth=0
    )
    lines = {"predicted": (FAINT, (0, (4, 2))), "estimated": (VERMILLION, "solid")}
    places = spread([float(group[column].iloc[-1]) for column in lines], top * 0.08)
    for (column, (colour, dashes)), place in zip(lines.items(), places, strict=True):
        axes.plot(group["gamma"], group[column], color=colour, linestyle=dashes, linewidth=1.4)
        at_end(axes, float(group["gamma"].iloc[-1]), place, column, colour)
    run = group.dropna(subset=["measured", "measured_low"])
    if not run.empty:
        axes.errorbar(
            run["gamma"], run["measured"],
            yerr=[run["measured"] - run["measured_low"], run["measured_high"] - run["measured"]],
            fmt="o", color=BLUE, markerfacecolor=PAPER, markersize=4.5, elinewidth=0.9,
        )  # fmt: skip
        last = run.iloc[-1]
        at_end(axes, float(last["gamma"]), float(last["measured_low"]), "measured", BLUE, dx=0, dy=-8, ha="center")
    axes.axhline(1, color=INK, linewidth=0.7, zorder=1)
    first = group.iloc[0]
    axes.set_title(rf"{first['draft']} ($\alpha={first['alpha']:.2f}$, $c={group['c'].median():.2f}$)")
    axes.set_ylim(0, top)
    axes.set_xlabel(r"$\gamma$")
    axes.set_xticks([int(gamma) for gamma in group["gamma"]])
