"""Figures 2, 3 and 4: Equation 1 and Theorems 3.8 and 3.11 over alpha, the best gamma, and our records."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from specbench import theory
from specbench.records.frame import MACHINE, PAIR, Records, one_sample
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import (
    SIDE_BY_SIDE,
    TICKS,
    below,
    captions,
    error_bars,
    pair_lines,
    pair_name,
    placed,
)
from specbench.report.measured import FAMILIES, TRAINED, neural, outside, points, with_families
from specbench.report.paper import paper
from specbench.report.style import (
    FAINT,
    GAMMA_COLOURS,
    INK,
    MARKERS,
    PAPER,
    SERIES,
    WIDE,
    at_end,
    panels,
    with_intervals,
)
from specbench.report.tables.beyond import comparable, fastest

ALL = "All drafts under Algorithm 1 at their fastest constant γ"


def figure2(records: Records) -> Drawn:
    """Draw Equation 1 over alpha for each gamma, with the tokens per pass of our records."""
    spec = paper()["figure2"]
    low, high = spec["alpha"]
    figure, (axes, right) = panels(2, width=WIDE, height=4.9)
    alphas = np.linspace(low, high, 161)
    for gamma in spec["gamma"]:
        endless = math.isinf(gamma)
        values = [1 / (1 - a) if endless else theory.expected_tokens(a, int(gamma)) for a in alphas]
        colour = INK if endless else GAMMA_COLOURS[int(gamma)]
        axes.plot(alphas, values, color=colour)
        at_end(axes, high, values[-1], r"$\gamma=\infty$" if endless else rf"$\gamma={gamma}$", colour)
    axes.plot([low, high], [1, 1], color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
    at_end(axes, high, 1, "baseline", FAINT)
    measured = placed(points(records, {int(g) for g in spec["gamma"] if not math.isinf(g)}, (low, high)))
    for _, point in measured.iterrows():
        columns, colour = ("tokens_per_pass", "tokens_low", "tokens_high"), GAMMA_COLOURS[point["gamma"]]
        error_bars(axes, point, columns, colour, measured)
    axes.set(xlim=(low, high), ylim=spec["y"], xlabel=r"$\alpha$", ylabel="expected tokens per target pass")
    axes.set_yticks(range(0, 11, 2))
    axes.set_xticks(TICKS)
    pair_lines(axes, measured)
    whole = np.linspace(0, 0.98, 161)
    for gamma in spec["gamma"][:-1]:
        right.plot(whole, [theory.expected_tokens(a, int(gamma)) for a in whole], color=GAMMA_COLOURS[int(gamma)])
    others = _all_drafts(right, records, "tokens_per_pass", "tokens_per_pass_predicted", "tokens per target pass")
    notes = [
        "Curves: Equation 1. Points: tokens per target pass in our records, with 95% intervals; the last pass of a "
        "completion may be cut short, so short completions lie below the curve",
        f"Right: {ALL}. Dash: predicted, with the acceptance at each position and the ends of completions",
    ]
    notes += _rest(measured, records, (low, high), "figure2")
    title = "Figure 2. Expected tokens per target pass (τ)"
    return Drawn("figure2", title, figure, _both(measured, others), notes)


def _all_drafts(axes: Axes, records: Records, value: str, predicted: str, label: str) -> pd.DataFrame:
    """Draw `value` of every draft over its α from 0 to 1, with a dash at what was predicted for it, a mark a family."""
    frame = fastest(comparable(records))
    frame = frame[(frame["accept"] == "exact") & (frame["policy"] == "")].dropna(subset=["alpha", value])
    frame = with_families(frame.assign(best_calibrated=_best_calibrated(frame, records)), records)
    axes.set(xlim=(0, 1), xlabel=r"$\alpha$", ylabel=label)
    low, high = (value.removesuffix("_measured") + end for end in ("_low", "_high"))
    for number, family in enumerate([*FAMILIES, TRAINED]):
        of = frame[frame["family"] == family]
        if of.empty:
            continue
        style: dict[str, Any] = {"color": SERIES[number % len(SERIES)], "markersize": 4, "zorder": 5, "label": family}
        if low in of and of[low].notna().all():
            with_intervals(
                axes, of["alpha"], of[value], of[low], of[high], fmt=MARKERS[number], elinewidth=0.7, **style
            )
        else:
            axes.plot(of["alpha"], of[value], MARKERS[number], **style)
        axes.plot(of["alpha"], of[predicted], "_", color=INK, markersize=7, zorder=6)
    if not frame.empty:
        below(axes, axes.get_legend_handles_labels()[0])
    kept = [*PAIR, "gamma", *MACHINE, "alpha", "c", "verify_cost", "tokens_per_pass", "speedup_measured", "run_id"]
    return frame[list(dict.fromkeys([*kept, predicted, "family"]))]


def _best_calibrated(frame: pd.DataFrame, records: Records) -> list[float]:
    """The γ that was run with the highest calibrated speedup, for the pair of each record."""
    runs = records.chains[records.chains["gamma"].notna() & records.chains["speedup_calibrated"].notna()]
    best = runs.sort_values("speedup_calibrated").drop_duplicates([*PAIR, "accept"], keep="last")
    of_pair = {
        tuple(row[key] for key in PAIR): row["gamma"] for row in best.to_dict("records") if row["accept"] == "exact"
    }
    return [of_pair.get(tuple(row[key] for key in PAIR), math.nan) for row in frame.to_dict("records")]


def _both(paper_axes: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The points of both panels."""
    first = paper_axes.drop(columns="place").assign(panel="the paper's axes")
    return pd.concat([first, others.assign(panel="all drafts")], ignore_index=True) if len(others) else first


def figure4(records: Records) -> Drawn:
    """Draw speedup (solid) and operations (dotted) over alpha of a draft that costs nothing, with our records."""
    spec = paper()["figure4"]
    low, high = spec["alpha"]
    figure, (axes, right) = panels(2, width=WIDE, height=4.9)
    alphas = np.linspace(low, high, 161)
    for gamma in spec["gamma"]:
        colour = GAMMA_COLOURS[gamma]
        speed = [theory.walltime_improvement(a, gamma, spec["c"]) for a in alphas]
        work = [theory.operations_increase(a, gamma, spec["c_hat"]) for a in alphas]
        axes.plot(alphas, speed, color=colour)
        axes.plot(alphas, work, color=colour, linestyle=(0, (1, 1.6)), linewidth=1.4)
        at_end(axes, high, speed[-1], rf"$\gamma={gamma}$", colour)
    measured = placed(points(records, set(spec["gamma"]), (low, high)))
    for _, point in measured.iterrows():
        colour = GAMMA_COLOURS[point["gamma"]]
        error_bars(axes, point, ("speedup_measured", "speedup_low", "speedup_high"), colour, measured)
        error_bars(axes, point, ("operations", "operations_low", "operations_high"), colour, measured, hollow=True)
    axes.set(xlim=(low, high), ylim=(0, 7.6), xlabel=r"$\alpha$", ylabel="factor")
    axes.set_xticks(TICKS)
    at_end(axes, 0.9, 7.4, "speedup", INK)
    at_end(axes, 0.9, 1.3, "operations", INK)
    pair_lines(axes, measured)
    whole = np.linspace(0, 0.98, 161)
    for gamma in spec["gamma"]:
        values = [theory.walltime_improvement(a, gamma, spec["c"]) for a in whole]
        right.plot(whole, values, color=GAMMA_COLOURS[gamma], linewidth=0.8)
    others = _all_drafts(right, records, "speedup_measured", "speedup_calibrated", "measured speedup")
    right.set_ylim(0, max(2.0, 1.15 * others["speedup_measured"].max()) if len(others) else 2)
    right.axhline(1, color=FAINT, linewidth=0.7, zorder=1)
    notes = [
        f"Right: {ALL}. Thin curves: the same theorem at c = 0. Dash: calibrated, Theorem 3.8 with the measured c, v "
        "and overhead",
        "Solid: speedup (Theorem 3.8); dotted: arithmetic operations (Theorem 3.11); both at c = ĉ = 0",
        "Filled points: measured speedup, which includes the cost of the draft and therefore lies below the curve. "
        "Hollow points: operations counted in the run",
    ]
    notes += _rest(measured, records, (low, high), "figure4")
    return Drawn("figure4", "Figure 4. Speedup and operations", figure, _both(measured, others), notes)


def _rest(measured: pd.DataFrame, records: Records, alphas: tuple[float, float], name: str) -> list[str]:
    """The notes on points: pairs drawn side by side, records, and pairs outside the axes."""
    off = outside(records, alphas)
    close = [SIDE_BY_SIDE] if len(measured) and (measured["place"] != measured["alpha"]).any() else []
    return [*close, *captions(measured, name), *([f"Outside the paper's axes: {'; '.join(off)}"] if off else [])]


def figure3(records: Records) -> Drawn:
    """Draw the gamma that maximises Theorem 3.8, beside the fastest of ours."""
    spec = paper()["figure3"]
    low, high = spec["alpha"]
    figure, (axes, right) = panels(2, width=WIDE, height=4.9)
    alphas = np.linspace(low, high, 401)
    for c, colour in zip(spec["c"], SERIES, strict=False):
        values = [theory.optimal_gamma(float(a), c) for a in alphas]
        axes.plot(alphas, values, color=colour, drawstyle="steps-mid")
        at_end(axes, high, theory.optimal_gamma(spec["at_alpha"], c), rf"$c={c:g}$", colour)
    best = placed(_fastest(records.paper_runs, (low, high)))
    for index, (_, point) in enumerate(best.iterrows()):
        # Theory at the c of this pair, so that the point has a curve to lie on.
        curve = [theory.optimal_gamma(float(a), point["c"]) for a in alphas]
        axes.plot(alphas, curve, color=FAINT, linewidth=0.8, linestyle=(0, (4, 2)), drawstyle="steps-mid", zorder=2)
        low_bar, high_bar = point["gamma"] - point["gamma_low"], point["gamma_high"] - point["gamma"]
        axes.errorbar(
            [point["place"]], [point["gamma"]], yerr=[[low_bar], [high_bar]], fmt=MARKERS[index % len(MARKERS)],
            color=INK, markerfacecolor=PAPER if point["simulated"] else INK, markersize=4.5, elinewidth=0.8, zorder=5,
            label=f"{pair_name(point)}, c={point['c']:.2f}",
        )  # fmt: skip
    axes.set(xlim=(low, high), ylim=(0, 25), xlabel=r"$\alpha$", ylabel=r"optimal $\gamma$")
    axes.set_xticks(TICKS)
    pair_lines(axes, best)
    whole = np.linspace(0, 0.98, 401)
    for c, colour in zip(spec["c"], SERIES, strict=False):
        curve = [theory.optimal_gamma(float(a), c) for a in whole]
        right.plot(whole, curve, color=colour, drawstyle="steps-mid", linewidth=0.8)
    others = _all_drafts(right, records, "gamma", "best_calibrated", r"fastest $\gamma$")
    right.set_ylim(0, 12)
    notes = [
        "Curves: the γ that maximises Theorem 3.8",
        f"Right: {ALL}. Dash: the γ that was fastest by the calibrated speedup",
        "Points: the fastest γ that was run; the bar covers every γ whose speedup does not differ significantly. "
        "Dashed: the theory at that pair's own c",
        *([SIDE_BY_SIDE] if (best["place"] != best.get("alpha", best["place"])).any() else []),
        *captions(best, "figure3"),
    ]
    return Drawn("figure3", "Figure 3. The best γ", figure, _both(best, others), notes)


def _fastest(frame: pd.DataFrame, alphas: tuple[float, float]) -> pd.DataFrame:
    """The fastest run of each pair with several gammas, and the range of gammas whose interval reaches its speedup."""
    frame = one_sample(neural(frame)).dropna(subset=["speedup_measured", "speedup_high", "c"])
    rows = []
    for _, group in frame.groupby([*PAIR, *MACHINE], dropna=False):
        if len(group) < 2:
            continue
        top = group.loc[group["speedup_measured"].idxmax()]
        if alphas[0] <= top["alpha"] <= alphas[1]:
            near = group[group["speedup_high"] >= top["speedup_measured"]]["gamma"]
            kept = [*PAIR, "gamma", "alpha", "alpha_low", "alpha_high", "c", "speedup_measured", *MACHINE, "where"]
            kept += ["created", "run_id"]
            rows.append({key: top[key] for key in kept} | {
                "gamma_low": near.min(), "gamma_high": near.max(),
                "gammas_run": " ".join(f"{g:g}" for g in group["gamma"]),
            })  # fmt: skip
    return pd.DataFrame(rows)
