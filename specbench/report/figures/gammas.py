"""Speedup over gamma for each draft of our records, over the batch, and over gamma for a recommendation."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from specbench.analysis.forecast import expected_of_rows
from specbench.records.documents import LoadDocument, RecommendDocument, Verified
from specbench.records.frame import MACHINE, PAIR, Records, measured, one_sample
from specbench.records.schema import Row, RunRecord
from specbench.records.store import config_digest
from specbench.report.figure import (
    BLUE,
    FAINT,
    INK,
    PAPER,
    PURPLE,
    SERIES,
    SLATE,
    VERMILLION,
    Drawn,
    at_end,
    log2_axis,
    panels,
    spread,
    with_intervals,
)
from specbench.report.figures.annotations import captions, nothing_yet, pair_name
from specbench.report.load import TIE, best_drafts

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
    """The runs that differ in their batch alone: those of the most batches, of several the newest."""
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
    axes.set_title(rf"{pair}, $\gamma={gamma}$", fontsize=9, loc="left")
    _set_axes(axes, list(values["batch"]))


def _published(axes: Axes) -> None:
    for name, (points, colour) in PUBLISHED.items():
        axes.plot(list(points), list(points.values()), "o-", color=colour, linewidth=1.1, markersize=3.5)
        at_end(axes, max(points), list(points.values())[-1], name, colour)
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

    `record` is that of `specbench recommend`. Drafts come in the order of their best gamma.
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


# Goodput against load: a line for each draft and gamma, and where drafts stop paying.


MOST_LINES = 6  # drafts and gammas, those with the highest goodput somewhere
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)))


def goodput(record: LoadDocument, name: str = "load") -> Drawn:
    """Draw goodput over load, with the points that were served for real."""
    frame = pd.DataFrame([
        {name: row[name] for name in ("candidate", "gamma", "load", "rate", "goodput", "goodput_low", "goodput_high")}
        for row in record["rows"]
    ])  # fmt: skip
    real = {(one["candidate"], one["gamma"], one["rate"]): one for one in record["verified"]}
    keys = list(zip(frame["candidate"], frame["gamma"], frame["rate"], strict=True))
    for column, part in (("served", "measured"), ("simulated", "simulated")):
        frame[column] = [real[key][part]["goodput"] if key in real else None for key in keys]  # type: ignore[literal-required]
    figure, (axes,) = panels(width=6.2, height=3.4)
    groups = dict(list(frame.groupby(["candidate", "gamma"], sort=False)))
    alone, *drafts = groups
    drafts = sorted(drafts, key=lambda key: -float(groups[key]["goodput"].max()))[:MOST_LINES]
    shown = [alone, *(key for key in groups if key in drafts)]
    top = 1.12 * float(frame[["goodput", "served"]].max().max())
    ends = spread([float(groups[key]["goodput"].iloc[-1]) for key in shown], top * 0.065)
    lift = max(0.0, top * 0.03 - min(ends))  # labels near 0 would lie on those of the axis
    last = float(frame["load"].max())
    for place, (key, end) in enumerate(zip(shown, ends, strict=True)):
        group, colour = groups[key], INK if key == alone else SERIES[(place - 1) % len(SERIES)]
        style = DASHES[0] if key == alone else DASHES[(place - 1) // len(SERIES) % len(DASHES)]
        axes.plot(
            group["load"], group["goodput"], color=colour, linestyle=style, linewidth=2.2 if key == alone else 1.4
        )
        known = group.dropna(subset=["served"])
        axes.plot(known["load"], known["served"], "o", color=colour, markerfacecolor=PAPER, markersize=5, zorder=4)
        axes.plot(known["load"], known["simulated"], "x", color=colour, markersize=4, zorder=4)
        label = "target alone" if key == alone else f"{key[0]}, γ={key[1]}"
        at_end(axes, last, end + lift, label, colour, dx=8)
    crossing = where_drafts_stop(record)
    if crossing is not None:
        axes.axvline(crossing, color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)))
        axes.annotate(
            f"no draft above {crossing:.2f}", (crossing, top), xytext=(4, -8), textcoords="offset points", color=FAINT,
            fontsize=9,
        )  # fmt: skip
    axes.set(xlabel="load", ylabel="goodput (requests/s)", ylim=(0, top))
    promise = record["promise"]
    setting = (
        f"{record['target']} on {record['task']}, T={record['temperature']:g}. {record['hardware']}, "
        f"{record['dtype']}, at most {record['server_rows']} requests at a time"
    )
    notes = [
        setting,
        f"Goodput: requests a second with the first token within {1000 * promise['ttft_s']:.3g} ms and "
        f"{1000 * promise['tpot_s']:.3g} ms a token after it. Load 1: what the target alone serves with a full "
        "batch. Lines: simulated from measured costs of turns. Circles: served for real; crosses: simulated with the "
        "arrivals of these",
    ]
    if signs := record.get("disturbed_by"):
        notes.append(f"Contended: {signs}, so the costs are unreliable")
    under = f"{setting}. Lines: simulated; circles: served for real; crosses: simulated with their arrivals"
    return Drawn(name, "Goodput against load", figure, frame, notes, under)


def where_drafts_stop(record: LoadDocument) -> float | None:
    """The load from which the target alone has the highest goodput; None if a draft has it to the end."""
    gains = [(alone["load"], draft["goodput"] - (1 - TIE) * alone["goodput"]) for alone, draft in best_drafts(record)]
    if gains[-1][1] > 0:
        return None
    found = gains[-1][0]
    for (below, gain), (above, loss) in reversed(list(pairwise(gains))):
        if gain > 0:
            return below + (above - below) * gain / (gain - loss)
        found = below
    return found
