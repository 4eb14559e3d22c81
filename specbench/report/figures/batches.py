"""Speedup by batch size: ours, and published numbers of others."""

import pandas as pd
from matplotlib.axes import Axes

from specbench.analysis.costs.passes import expected_of_rows
from specbench.records.frame import MACHINE, PAIR, Records, measured
from specbench.records.identity import config_digest
from specbench.records.schema import Row, RunRecord
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet, pair_name
from specbench.report.style import BLUE, FAINT, INK, PAPER, PURPLE, SLATE, VERMILLION, at_end, panels, spread

TITLE = "Speedup by batch size"
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
        return nothing_yet("batches", TITLE)
    values = pd.DataFrame([_values(row, records.whole(row["run_id"])) for _, row in chosen.iterrows()])
    figure, (ours, theirs) = panels(2, width=7.2, height=2.8)
    _ours(ours, values, pair_name(chosen.iloc[0]), int(chosen.iloc[0]["gamma"]))
    _published(theirs)
    notes = [
        "Left: decoding, target alone over speculative at the same batch, with 95% interval. Curve: expected, the "
        "tokens of a pass from each row's own α and end, over its cost at that batch, c(B) and v(B, γ). Saturated: "
        "the same if the target were compute-bound, v = γ + 1. Right: as published, chains of 3, other models "
        "and another machine (Li et al. 2025, EAGLE-3, table of SGLang on an H100)",
        *captions(chosen, "batches"),
    ]
    return Drawn("batches", TITLE, figure, values, notes)


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
    curves = {"expected": (VERMILLION, (0, (4, 2))), "saturated": (FAINT, (0, (1, 1.5)))}
    last = values["batch"].max()
    places = spread([float(values[name].iloc[-1]) for name in curves], 0.08)
    for (name, (colour, dashes)), place in zip(curves.items(), places, strict=True):
        axes.plot(values["batch"], values[name], color=colour, linestyle=dashes, linewidth=1.3)
        at_end(axes, last, place, name, colour)
    below, above = (abs(values["speedup_measured"] - values[bound]) for bound in ("speedup_low", "speedup_high"))
    axes.errorbar(
        values["batch"], values["speedup_measured"], yerr=[below, above], fmt="o", color=BLUE, markersize=4,
        markeredgecolor=PAPER, elinewidth=0.9, zorder=5,
    )  # fmt: skip
    axes.set_title(rf"{pair}, $\gamma={gamma}$", fontsize=9, loc="left")
    _frame(axes, list(values["batch"]))


def _published(axes: Axes) -> None:
    for name, (points, colour) in PUBLISHED.items():
        axes.plot(list(points), list(points.values()), "o-", color=colour, linewidth=1.1, markersize=3.5)
        at_end(axes, max(points), list(points.values())[-1], name, colour)
    axes.set_title("published", fontsize=9, loc="left")
    _frame(axes, list(next(iter(PUBLISHED.values()))[0]))


def _frame(axes: Axes, ticks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axhline(1, color=INK, linewidth=0.7, zorder=1)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="batch", ylabel="speedup")
