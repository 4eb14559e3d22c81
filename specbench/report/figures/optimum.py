"""Figure 3: the gamma that maximises Theorem 3.8, and the fastest gamma that was run."""

import numpy as np
import pandas as pd

from specbench import theory
from specbench.records.frame import MACHINE, PAIR, Records, one_sample
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import SIDE_BY_SIDE, TICKS, captions, pair_lines, placed
from specbench.report.measured import neural
from specbench.report.paper import paper
from specbench.report.style import FAINT, INK, MARKERS, PAPER, SERIES, at_end, panels, spread


def figure3(records: Records) -> Drawn:
    """Draw the gamma that maximises Theorem 3.8, beside the fastest of ours."""
    spec = paper()["figure3"]
    low, high = spec["alpha"]
    figure, (axes,) = panels(width=4.6, height=3.5)
    alphas = np.linspace(low, high, 401)
    for c, colour in zip(spec["c"], SERIES, strict=False):
        values = [theory.optimal_gamma(float(a), c) for a in alphas]
        axes.plot(alphas, values, color=colour, drawstyle="steps-mid")
        at_end(axes, high, theory.optimal_gamma(spec["at_alpha"], c), rf"$c={c:g}$", colour)
    best = placed(_fastest(records.frame, (low, high)))
    ends = [float(theory.optimal_gamma(high, c)) for c in best["c"]] if len(best) else []
    for index, ((_, point), end) in enumerate(zip(best.iterrows(), spread(ends, 1.1), strict=True)):
        # Theory at the c of this pair, so that the point has a curve to lie on.
        curve = [theory.optimal_gamma(float(a), point["c"]) for a in alphas]
        axes.plot(alphas, curve, color=FAINT, linewidth=0.8, linestyle=(0, (4, 2)), drawstyle="steps-mid", zorder=2)
        at_end(axes, high, end, rf"$c={point['c']:.2f}$, ours", FAINT)
        low_bar, high_bar = point["gamma"] - point["gamma_low"], point["gamma_high"] - point["gamma"]
        axes.errorbar(
            [point["place"]], [point["gamma"]], yerr=[[low_bar], [high_bar]], fmt=MARKERS[index % len(MARKERS)],
            color=INK, markerfacecolor=PAPER if point["simulated"] else INK, markersize=4.5, elinewidth=0.8, zorder=5,
        )  # fmt: skip
    axes.set(xlim=(low, high), ylim=(0, 25), xlabel=r"$\alpha$", ylabel=r"optimal $\gamma$")
    axes.set_xticks(TICKS)
    pair_lines(axes, best)
    notes = [
        "Curves: the γ that maximises Theorem 3.8",
        "Points: the fastest γ that was run; the bar covers every γ whose speedup does not differ significantly. "
        "Dashed: the theory at that pair's own c",
        *([SIDE_BY_SIDE] if (best["place"] != best.get("alpha", best["place"])).any() else []),
        *captions(best, "figure3"),
    ]
    return Drawn("figure3", "Figure 3. The best γ", figure, best.drop(columns="place"), notes)


def _fastest(frame: pd.DataFrame, alphas: tuple[float, float]) -> pd.DataFrame:
    """Of each pair with several gammas the fastest, with the range of gammas whose interval reaches its speedup."""
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
