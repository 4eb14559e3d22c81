"""Measured speedup of every draft under every rule, sorted: a line each, a panel a temperature."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from specbench.records.frame import MACHINE, PAIR, Records, short
from specbench.records.schema import Row
from specbench.report.comparison import PLACE, comparable, fastest
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import HALO, captions, nothing_yet
from specbench.report.style import BLUE, INK, PAPER, VERMILLION, panels

TITLE = "Speedup of every draft and rule"
WHERE = ["target", "task", *PLACE]  # what makes a panel, with the temperature
MOST_BLOCKS = 6
LINE, FRAME, NAMES, PANEL = 0.185, 0.55, 1.75, 2.75  # inches: a line, what stands about a panel, names, a panel
ROOM = 0.75  # of the speeds' span, for the label after a mark


def beyond(records: Records) -> Drawn:
    """Draw the speedup of every draft and rule at its fastest gamma."""
    best = fastest(comparable(records))
    drawn = best.dropna(subset=["speedup_measured"])
    if drawn.empty:
        return nothing_yet("beyond", TITLE)
    drawn = drawn.assign(entry=[_entry(row) for row in drawn.to_dict("records")])
    found = [block for _, block in drawn.groupby(WHERE, dropna=False, sort=False)]
    blocks = sorted(found, key=lambda block: -block["entry"].nunique())[:MOST_BLOCKS]
    shown = pd.concat(blocks)
    temperatures = sorted(shown["temperature"].unique())
    heights = [LINE * (block["entry"].nunique() + 0.2) for block in blocks]
    width = NAMES + PANEL * len(temperatures)
    height = sum(heights) + FRAME * len(blocks) + 0.1
    figure, axes = panels(len(temperatures), width=width, height=height, rows=len(blocks), heights=heights)
    for index, block in enumerate(blocks):
        order, span = _sorted(block), _span(block)
        row = axes[index * len(temperatures) :][: len(temperatures)]
        for panel, temperature in zip(row, temperatures, strict=True):
            points = block[block["temperature"] == temperature]
            _panel(panel, points, order, named=panel is row[0])
            panel.set(xlim=span, xlabel="measured speedup" if block is blocks[-1] else "")
            panel.set_title(_title(block.iloc[0], temperature, among=drawn))
            panel.set_visible(not points.empty or panel is row[0])
    kept = [*PAIR, *MACHINE, "accept", "gamma_said", "prompts", "alpha", "c", "verify_cost", "tokens_per_pass"]
    kept += ["speedup_measured", "speedup_low", "speedup_high", "lossy", "run_id"]
    return Drawn("beyond", TITLE, figure, shown[kept], [*_notes(best, found, shown), *captions(shown, "beyond")])


def _span(block: pd.DataFrame) -> tuple[float, float]:
    """The axis of a block's panels: its speeds and 1, with room for the label after a mark."""
    low, high = min(1.0, block["speedup_low"].min()), max(1.0, block["speedup_high"].max())
    return low - 0.04 * (high - low), high + ROOM * (high - low)


def _notes(best: pd.DataFrame, found: list[pd.DataFrame], shown: pd.DataFrame) -> list[str]:
    prompts = " or ".join(f"{n:.0f}" for n in sorted(shown["prompts"].unique()))
    said = [
        "Decoding time per token, target alone over speculative, with 95% interval, at the fastest γ that was "
        f"run, printed beside the mark; {prompts} prompts a run",
        "Hollow: a lossy rule. A draft without a mark was not run at that temperature",
    ]
    wrong = best[best["speedup_measured"].isna()]
    if not wrong.empty:
        said.append(f"No speedup, since completions differ by more than rounding: {', '.join(wrong['draft'])}")
    if len(found) > MOST_BLOCKS:
        said.append(f"{len(found) - MOST_BLOCKS} more pairs of target and task are only in the table")
    return said


def _entry(row: Row) -> str:
    """'t5-nano, block', 't5-nano, heuristic γ'."""
    rule = "" if row["accept"] == "exact" else row["accept"]
    policy = row["policy"] and (f"γ={row['policy']}" if row["policy"][0].isdigit() else f"{row['policy']} γ")
    return ", ".join(filter(None, [row["draft"], rule, policy]))


def _sorted(block: pd.DataFrame) -> list[str]:
    """The entries from the fastest to the slowest, each at its lowest temperature."""
    coldest = block.sort_values("temperature", kind="stable").drop_duplicates("entry")
    return list(coldest.sort_values("speedup_measured", ascending=False, kind="stable")["entry"])


def _title(first: "pd.Series[Any]", temperature: float, among: pd.DataFrame) -> str:
    """With the machine where `among` is from several."""
    machine = f" ({short(first['hardware'])}, {first['dtype']})" if len(among.drop_duplicates(PLACE)) > 1 else ""
    return f"{first['target']} on {first['task']}, T={temperature:g}{machine}"


def _panel(axes: Axes, points: pd.DataFrame, order: list[str], named: bool) -> None:
    for point in points.to_dict("records"):
        y, x, lossy = order.index(point["entry"]), point["speedup_measured"], point["lossy"]
        colour = VERMILLION if lossy else BLUE
        axes.errorbar(
            [x], [y], xerr=[[x - point["speedup_low"]], [point["speedup_high"] - x]], fmt="s" if lossy else "o",
            color=colour, markerfacecolor=PAPER if lossy else colour, markersize=4.5, markeredgewidth=1,
            elinewidth=0.9, capsize=0, zorder=5,
        )  # fmt: skip
        said = [f"{x:.2f}×", "" if point["policy"] else f"γ={point['gamma_said']}", "lossy" if lossy else ""]
        axes.annotate(
            ", ".join(filter(None, said)), (point["speedup_high"], y), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=8, color=colour, zorder=6, path_effects=HALO,
        )  # fmt: skip
    axes.axvline(1, color=INK, linewidth=0.7, zorder=1)
    axes.set_yticks(range(len(order)), order if named else [""] * len(order))
    axes.set_ylim(len(order) - 0.4, -0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
