"""The paper's Table 2: the tokens of Eq. 1, the expected speedup (EXP), and the measured speedup (EMP)."""

import pandas as pd
from matplotlib.axes import Axes

from specbench.records.frame import Records
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import HALO
from specbench.report.style import BLUE, FAINT, GREEN, GRID, INK, VERMILLION, WIDE, panels
from specbench.report.tables.gap import Gap, gaps, remarks
from specbench.report.tables.gap import gap as table

TITLE = "Where the paper's measured speedups leave Theorem 3.8"
LINE = 0.34  # inches a row
COLOURS = {"above": GREEN, "below": VERMILLION, "within rounding": FAINT}


def gap(records: Records) -> Drawn:
    """Draw the paper's EMP beside its EXP, row by row."""
    found = gaps()
    figure, (axes,) = panels(width=WIDE, height=LINE * (len(found) + 2.2))
    for place, one in enumerate(found):
        _row(axes, place, one)
    axes.set_yticks(range(len(found)), [f"{one.name}, γ={one.row['gamma']}" for one in found])
    axes.set(ylim=(len(found) - 0.4, -0.9), xlim=(1, 5.2), xlabel="speedup")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.tick_params(axis="y", length=0)
    first = found[0]
    _named(axes, first.expected.value, "EXP", -14, "right")
    _named(axes, first.measured.value, "EMP", 0, "center")
    _named(axes, first.tokens_expected.value, "tokens, Eq. 1", 14, "left")
    legend = (
        "Grey: tokens a pass by Eq. 1. Blue: EXP, with the range that the printed digits leave. Arrows: to EMP, green "
        "where it lies above EXP, red where it lies below"
    )
    values: pd.DataFrame = table(records).values
    return Drawn("gap", TITLE, figure, values, [legend, *remarks(found)])


def _named(axes: Axes, x: float, text: str, dx: float, side: str) -> None:
    """A word above the first row."""
    axes.annotate(
        text, (x, -0.32), xytext=(dx, 3), textcoords="offset points", fontsize=8, ha=side, va="bottom", color=FAINT
    )


def _row(axes: Axes, place: int, one: Gap) -> None:
    colour, tokens = COLOURS[one.verdict], one.tokens_expected.value
    axes.plot([one.expected.value, tokens], [place, place], color=GRID, linewidth=5, zorder=1)
    axes.plot(
        [one.tokens_expected.value], [place], marker="|", color=FAINT, markersize=9, markeredgewidth=1.4, zorder=2
    )
    axes.annotate(
        "", (one.measured.value, place), xytext=(one.expected.value, place), zorder=4,
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip
    axes.plot([one.expected.low, one.expected.high], [place, place], color=BLUE, linewidth=3, zorder=3)
    axes.plot([one.expected.value], [place], marker="|", color=BLUE, markersize=9, markeredgewidth=1.8, zorder=5)
    most, name = max(one.measured.value, tokens), INK if one.verdict == "within rounding" else colour
    axes.annotate(
        f"EMP {one.measured.value:.1f}, {100 * (one.ratio.value - 1):+.0f}%", (most, place), xytext=(6, 0),
        textcoords="offset points", va="center", fontsize=8.5, color=name,
        path_effects=HALO,
    )  # fmt: skip
