"""Speedup over gamma for each draft of our records, over the batch, and over gamma for a recommendation."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from specbench.analysis.forecast import expected_of_rows
from specbench.records.choosing import RecommendDocument, Verified
from specbench.records.frame import MACHINE, PAIR, Records, measured, one_sample
from specbench.records.run_record import Row, RunRecord
from specbench.records.store import config_digest
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import HALO, captions, nothing_yet, pair_name
from specbench.report.style import (
    BLUE,
    FAINT,
    INK,
    PAPER,
    PURPLE,
    SLATE,
    VERMILLION,
    at_end,
    log2_axis,
    panels,
    spread,
    with_intervals,
)

Curves = Mapping[str, tuple[str, str, Any]]  # column: name, colour, dashes
TITLE = "Speedup against γ"
LINES: Curves = {
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


def _curves(axes: Axes, points: pd.DataFrame, x: str, curves: Curves, apart: float, linewidth: float = 1.4) -> None:
    """Draw columns of `points` over the column `x`, each with its name at its end, `apart` from the next."""
    ends = [float(points[column].dropna().iloc[-1]) if points[column].notna().any() else 0.0 for column in curves]
    for (column, (name, colour, dashes)), place in zip(curves.items(), spread(ends, apart), strict=True):
        known = points.dropna(subset=[column])
        if not known.empty:
            axes.plot(known[x], known[column], color=colour, linestyle=dashes, linewidth=linewidth)
            at_end(axes, points[x].max(), place, name, colour)


def _panel(axes: Axes, group: pd.DataFrame, top: float) -> None:
    _curves(axes, group, "gamma", LINES, top * 0.075)
    known = group.dropna(subset=["speedup_measured", "speedup_low"])
    with_intervals(
        axes, known["gamma"], *(known[f"speedup_{name}"] for name in ("measured", "low", "high")), fmt="o", color=BLUE,
        markerfacecolor=PAPER if group["simulated"].any() else BLUE, markersize=4, elinewidth=0.9,
    )  # fmt: skip
    axes.axhline(1, color=INK, linewidth=0.7, zorder=1)
    first = group.iloc[0]
    axes.set_title(f"{pair_name(first)}\n" + rf"$\alpha={first['alpha']:.2f}$")
    axes.set_ylim(0, top)
    axes.set_xticks(group["gamma"].tolist())


BATCHES_TITLE = "Speedup by batch size"
BATCH_CURVES: Curves = {
    "expected": ("calibrated", VERMILLION, (0, (4, 2))),
    "saturated": ("saturated", FAINT, (0, (1, 1.5))),
}
SAME = [*PAIR, "gamma", "accept", *MACHINE, "others"]  # of the points of one curve; others: all keys but batch
FEWEST = 3  # batches of a curve
# Speedups over the target alone at the same batch, in SGLang on an H100 (Li et al. 2025, "EAGLE-3").
PUBLISHED = {
    "EAGLE-3": ({2: 1.81, 8: 1.62, 24: 1.39, 56: 1.34}, PURPLE),
    "EAGLE": ({2: 1.40, 8: 1.23, 24: 0.93, 56: 0.99}, SLATE),
}


def batches(records: Records) -> Drawn:
    """Draw speedup over the batch, measured and expected, beside published figures."""
    found = measured(pd.concat([records.chains, records.batches], ignore_index=True))
    others = [config_digest(records.catalog.head(run_id).config, "batch") for run_id in found["run_id"]]
    chosen = _choose(found.assign(others=others))
    if chosen.empty:
        return nothing_yet("batches", BATCHES_TITLE)
    values = pd.DataFrame([_values(row, records.whole(row["run_id"])) for _, row in chosen.iterrows()])
    figure, (ours, theirs) = panels(2, width=7.2, height=2.8)
    _ours(ours, values, pair_name(chosen.iloc[0]), int(chosen.iloc[0]["gamma"]))
    _published(theirs)
    notes = [
        "Left: decoding, target alone over speculative at the same batch, with 95% interval. Curve: calibrated, the "
        "tokens of a pass from each prompt's own α and end, over its cost at that batch, c(B) and v(B, γ). Saturated: "
        "the same if the target were compute-bound, v = γ + 1. Right: as published, chains of 3, other models "
        "and another machine (Li et al. 2025, EAGLE-3, table of SGLang on an H100)",
        *captions(chosen, "batches"),
    ]
    return Drawn("batches", BATCHES_TITLE, figure, values, notes)


def _choose(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs that differ only in their batch: the group with the most batches, among equals the newest."""
    frame = frame[frame["gamma"].notna() & (frame["accept"] == "exact") & frame["speedup_measured"].notna()]
    groups = [
        group.sort_values("created").drop_duplicates("batch", keep="last").sort_values("batch")
        for _, group in frame.groupby(SAME, dropna=False)
        if group["batch"].nunique() >= FEWEST
    ]
    return max(groups, key=lambda group: (len(group), group["created"].max())) if groups else frame.iloc[:0]


def _values(row: "pd.Series[object]", record: RunRecord) -> Row:
    """The points of a run: measured, expected at its own costs, and expected at saturation."""
    summary, gamma = record["summary"], record["summary"]["gamma"]
    assert gamma is not None
    expected = expected_of_rows(record["prompts"], gamma, record["config"]["max_new_tokens"])
    tokens = expected.tokens * summary.get("occupancy", 1.0) / summary.get("occupancy_baseline", 1.0)
    drafting = expected.drafted * (summary["c"] or 0.0)
    cost = drafting + (summary["verify_cost"] or 1.0) + summary["overhead"]
    names = ("batch", "speedup_measured", "speedup_low", "speedup_high", "c", "verify_cost", "overhead", "run_id")
    return {name: row[name] for name in names} | {
        "expected": tokens / cost,
        "saturated": tokens / (drafting + expected.drafted + 1),
        "tokens_per_second_baseline": row.get("tokens_per_second_baseline"),
        "tokens_per_second": row.get("tokens_per_second"),
    }


def _ours(axes: Axes, values: pd.DataFrame, pair: str, gamma: int) -> None:
    _curves(axes, values, "batch", BATCH_CURVES, 0.08, linewidth=1.3)
    with_intervals(
        axes, values["batch"], *(values[f"speedup_{name}"] for name in ("measured", "low", "high")), fmt="o",
        color=BLUE, markersize=4, markeredgecolor=PAPER, elinewidth=0.9, zorder=5,
    )  # fmt: skip
    first = values.iloc[0]
    at_end(axes, first["batch"], first["speedup_high"], "measured", BLUE, path_effects=HALO)
    axes.set_title(rf"{pair}, $\gamma={gamma}$", fontsize=9, loc="left")
    _set_axes(axes, list(values["batch"]))


def _published(axes: Axes) -> None:
    for name, (points, colour) in PUBLISHED.items():
        axes.plot(list(points), list(points.values()), "o-", color=colour, linewidth=1.1, markersize=3.5)
        at_end(axes, max(points), list(points.values())[-1], name, colour, path_effects=HALO)
    axes.set_title("published", fontsize=9, loc="left")
    _set_axes(axes, list(next(iter(PUBLISHED.values()))[0]))


def _set_axes(axes: Axes, ticks: list[int]) -> None:
    log2_axis(axes, ticks)
    axes.axhline(1, color=INK, linewidth=0.7, zorder=1)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="batch", ylabel="speedup")


MOST_DRAFTS = 4  # panels of a recommendation
CHOOSING_CURVES: Curves = {
    "predicted": ("predicted", FAINT, (0, (4, 2))),
    "estimated": ("calibrated", VERMILLION, "solid"),
}


def choosing(record: RecommendDocument, name: str = "choosing") -> Drawn:
    """Draw the estimated speedup of each draft over gamma, and the speedups of real runs.

    `record` comes from `specbench recommend`. Drafts come in the order of their best gamma.
    """
    rows = _rows(record)
    drafts = list(dict.fromkeys(row["candidate"] for row in record["rows"]))[:MOST_DRAFTS]
    figure, axes = panels(len(drafts), width=0.8 + 2.4 * len(drafts), height=2.7)
    highs = rows[["predicted", "estimated", "estimated_high", "measured_high"]].max().max()
    top = max(1.15, 1.05 * min(float(highs), 1.5 * float(rows["estimated"].max())))
    for panel, draft in zip(axes, drafts, strict=True):
        _choosing_panel(panel, rows[rows["draft"] == draft].sort_values("gamma"), top)
    axes[0].set_ylabel("speedup")
    notes = [
        f"{record['target']} on {record['task']}, T={record['temperature']:g}, {record['dtype']}, {record['hardware']}",
        "Predicted: Theorem 3.8. Calibrated: tokens over the cost of the passes that the target's completions need, "
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
            "draft": row["candidate"], "gamma": row["gamma"], "alpha": row["alpha"].value, "c": row["cost"].c,
            "predicted": row["predicted"], "estimated": row["estimated"].value,
            "estimated_low": row["estimated"].low, "estimated_high": row["estimated"].high,
            "measured": proof.get("measured"), "measured_low": proof.get("measured_low"),
            "measured_high": proof.get("measured_high"), "run_id": proof.get("run_id"),
        })  # fmt: skip
    frame = pd.DataFrame(rows)
    numbers = [column for column in frame if column not in ("draft", "run_id")]
    frame[numbers] = frame[numbers].astype(float)
    return frame


def _choosing_panel(axes: Axes, group: pd.DataFrame, top: float) -> None:
    known = group.dropna(subset=["estimated_low"])
    axes.fill_between(
        known["gamma"], known["estimated_low"], known["estimated_high"], color=VERMILLION, alpha=0.15, linewidth=0
    )
    _curves(axes, group, "gamma", CHOOSING_CURVES, top * 0.08)
    run = group.dropna(subset=["measured", "measured_low"])
    if not run.empty:
        with_intervals(
            axes, run["gamma"], run["measured"], run["measured_low"], run["measured_high"], fmt="o", color=BLUE,
            markerfacecolor=PAPER, markersize=4.5, elinewidth=0.9,
        )  # fmt: skip
        last = run.iloc[-1]
        at_end(axes, float(last["gamma"]), float(last["measured_low"]), "measured", BLUE, dx=0, dy=-8, ha="center")
    axes.axhline(1, color=INK, linewidth=0.7, zorder=1)
    first = group.iloc[0]
    axes.set_title(rf"{first['draft']} ($\alpha={first['alpha']:.2f}$, $c={group['c'].median():.2f}$)")
    axes.set_ylim(0, top)
    axes.set_xlabel(r"$\gamma$")
    axes.set_xticks([int(gamma) for gamma in group["gamma"]])
