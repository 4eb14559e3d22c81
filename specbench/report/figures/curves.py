"""Figures 2, 3 and 4: Equation 1 and Theorems 3.8 and 3.11 over alpha, the best gamma, and our records."""

import math

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from specbench import theory
from specbench.records.frame import MACHINE, PAIR, Records, one_sample
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import (
    SIDE_BY_SIDE,
    TICKS,
    captions,
    error_bars,
    pair_lines,
    pair_name,
    placed,
)
from specbench.report.measured import neural, outside, points
from specbench.report.paper import paper
from specbench.report.style import (
    FAINT,
    GAMMA_COLOURS,
    INK,
    MARKERS,
    PAPER,
    SERIES,
    at_end,
    panels,
)

DASHED = (0, (4, 2))


def figure2(records: Records) -> Drawn:
    """Draw Equation 1 over alpha for each gamma, with the tokens per pass of our records."""
    spec = paper()["figure2"]
    low, high = spec["alpha"]
    figure, (axes,) = panels(width=5.2, height=4.9)
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
    notes = [
        "Curves: Equation 1. Points: tokens per target pass in our records, with 95% intervals; the last pass of a "
        "completion may be cut short, so short completions lie below the curve",
    ]
    notes += _notes_on_points(measured, records, (low, high), "figure2")
    title = "Figure 2. Expected tokens per target pass (τ)"
    return Drawn("figure2", title, figure, measured.drop(columns="place"), notes)


def figure4(records: Records) -> Drawn:
    """Draw speedup (solid) and operations (dotted) over alpha of a draft that costs nothing, with our records."""
    spec = paper()["figure4"]
    low, high = spec["alpha"]
    figure, (axes,) = panels(width=5.2, height=4.9)
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
    kinds = (("filled: measured speedup", INK), ("hollow: operations counted, or a simulated pair", PAPER))
    marks = [
        Line2D([], [], marker="o", linestyle="", color=INK, markerfacecolor=inside, markersize=4.5, label=said)
        for said, inside in kinds
    ]
    pair_lines(axes, measured, marks)
    notes = [
        "Solid: speedup (Theorem 3.8); dotted: arithmetic operations (Theorem 3.11); both at c = ĉ = 0",
        "Filled points: measured speedup, which includes the cost of the draft and therefore lies below the curve. "
        "Hollow points: operations counted in the run",
    ]
    notes += _notes_on_points(measured, records, (low, high), "figure4")
    return Drawn("figure4", "Figure 4. Speedup and operations", figure, measured.drop(columns="place"), notes)


def _notes_on_points(measured: pd.DataFrame, records: Records, alphas: tuple[float, float], name: str) -> list[str]:
    """The notes on points: pairs drawn side by side, records, and pairs outside the axes."""
    off = outside(records, alphas)
    close = [SIDE_BY_SIDE] if len(measured) and (measured["place"] != measured["alpha"]).any() else []
    return [*close, *captions(measured, name), *([f"Outside the paper's axes: {'; '.join(off)}"] if off else [])]


def figure3(records: Records) -> Drawn:
    """Draw the gamma that maximises Theorem 3.8, beside the fastest of ours."""
    spec = paper()["figure3"]
    low, high = spec["alpha"]
    figure, (axes,) = panels(width=5.2, height=4.9)
    alphas = np.linspace(low, high, 401)
    for c, colour in zip(spec["c"], SERIES, strict=False):
        values = [theory.optimal_gamma(float(a), c) for a in alphas]
        axes.plot(alphas, values, color=colour, drawstyle="steps-mid")
        at_end(axes, high, theory.optimal_gamma(spec["at_alpha"], c), rf"$c={c:g}$", colour)
    best = placed(_fastest(records.paper_runs, (low, high)))
    for index, (_, point) in enumerate(best.iterrows()):
        # Theory at the c of this pair, so that the point has a curve to lie on.
        curve = [theory.optimal_gamma(float(a), point["c"]) for a in alphas]
        axes.plot(alphas, curve, color=FAINT, linewidth=0.8, linestyle=DASHED, drawstyle="steps-mid", zorder=2)
        low_bar, high_bar = point["gamma"] - point["gamma_low"], point["gamma_high"] - point["gamma"]
        axes.errorbar(
            [point["place"]], [point["gamma"]], yerr=[[low_bar], [high_bar]], fmt=MARKERS[index % len(MARKERS)],
            color=INK, markerfacecolor=PAPER if point["simulated"] else INK, markersize=4.5, elinewidth=0.8, zorder=5,
            label=f"{pair_name(point)}, c={point['c']:.2f}",
        )  # fmt: skip
    axes.set(xlim=(low, high), ylim=(0, 25), xlabel=r"$\alpha$", ylabel=r"optimal $\gamma$")
    axes.set_xticks(TICKS)
    dashed = Line2D([], [], color=FAINT, linewidth=0.8, linestyle=DASHED, label="Theorem 3.8 at a pair's own c")
    pair_lines(axes, best, [dashed])
    notes = [
        "Curves: the γ that maximises Theorem 3.8",
        "Points: the fastest γ that was run; the bar covers every γ whose speedup does not differ significantly. "
        "Dashed: the theory at that pair's own c",
        *([SIDE_BY_SIDE] if (best["place"] != best.get("alpha", best["place"])).any() else []),
        *captions(best, "figure3"),
    ]
    return Drawn("figure3", "Figure 3. The best γ", figure, best.drop(columns="place"), notes)


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
