"""Where speed goes: of a run from the ideal gamma + 1 to the measured speedup; in the paper from EXP to EMP."""

from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes

from specbench.analysis import explain
from specbench.analysis.explain import Waterfall
from specbench.records.cells import SIZE_THEN_SPEED, choose
from specbench.records.frame import PAIR, Records, measured
from specbench.records.run_record import Row, RunRecord
from specbench.report.explanation import name as step_name
from specbench.report.explanation import sentences
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import HALO, captions, nothing_yet
from specbench.report.measured import neural
from specbench.report.style import (
    BLUE,
    FAINT,
    GREEN,
    GRID,
    INK,
    VERMILLION,
    WIDE,
    panels,
    vertical_grid,
)
from specbench.report.tables.gap import Gap, gaps, remarks
from specbench.report.tables.gap import gap as table

TITLE = "Where the speed goes"
LINE = 0.26  # inches a bar
NAMED = 4  # sentences under the figure


def waterfall(records: Records) -> Drawn:
    """Draw the waterfall of one record: of a model draft, greedy, over the most prompts, at its fastest gamma."""
    timed = neural(measured(records.paper_runs)).dropna(subset=["speedup_measured"])
    if timed.empty:
        return nothing_yet("waterfall", TITLE)
    best = choose(timed, PAIR, SIZE_THEN_SPEED)
    ranked = best.assign(greedy=best["temperature"] == 0)
    row = ranked.sort_values(["greedy", "prompts", "speedup_measured"], ascending=False, kind="stable").iloc[0]
    record = records.whole(row["run_id"])
    drawn = draw(record, explain.waterfall(record), "waterfall", in_six=True)
    source = best[best["run_id"] == row["run_id"]]
    return replace(drawn, notes=[*drawn.notes, *captions(source, "waterfall")])


def draw(record: RunRecord, found: Waterfall, name: str, in_six: bool = False) -> Drawn:
    """The waterfall of `record`, with a bar for each step, or in six bars."""
    summary = record["summary"]
    rows = _six(found) if in_six else _rows(found)
    made, axes = panels(width=WIDE, height=LINE * (len(rows) + 2.2))
    _bars(axes[0], rows)
    points = pd.DataFrame(rows).assign(run_id=record["run_id"])
    gamma = summary["gamma"] or summary["gamma_requested"]
    said = " (simulated)" if summary.get("simulated") else ""
    title = (
        f"{TITLE}: {summary['target']} with {summary['draft']} on {summary['task']}, T={summary['temperature']:g}, "
        f"γ={gamma}{said}"
    )
    machine = f"{summary['hardware']}, {summary['dtype']}, {summary['prompts']} prompts"
    under = f"{machine}. Each bar takes the speedup down by its factor"
    return Drawn(name, title, made, points, sentences(found)[:NAMED], under)


def _rows(found: Waterfall) -> list[Row]:
    """A row a bar: what the speedup was before it and is after it."""
    rows: list[Row] = [{"step": "ideal", "before": 0.0, "after": found.ideal, "total": True}]
    before = found.ideal
    for step in found.steps:
        if step.step == "start":
            rows.append(_reached("measured", found.measured.value, found.measured.low, found.measured.high))
        factor = step.factor
        rows.append({
            "step": step_name(step.step, found), "before": before, "after": step.speedup, "total": False,
            "factor": factor.value, "factor_low": factor.low, "factor_high": factor.high, "ms": step.ms.value,
        })  # fmt: skip
        before = step.speedup
    return [*rows, _reached("end to end", found.end_to_end.value, found.end_to_end.low, found.end_to_end.high)]


def _six(found: Waterfall) -> list[Row]:
    """γ + 1, rejections, ends of completions, drafting, verification with accepting, measured: factors multiply."""
    names = {"rejections": "rejections", "rule": "rejections", "shape": "rejections", "positions": "rejections"}
    names |= {"ends": "completions end", "drafting": "drafting"}
    before, bars = found.ideal, dict[str, Row]()
    rows: list[Row] = [{"step": "γ + 1 tokens per pass", "before": 0.0, "after": found.ideal, "total": True}]
    for step in found.steps:
        if step.step != "start":
            bar = bars.setdefault(names.get(step.step, "verification"), {"total": False, "factor": 1.0, "ms": 0.0})
            bar["factor"] *= step.factor.value
            bar["ms"] += step.ms.value
    for said in ("rejections", "completions end", "drafting", "verification"):
        if said in bars:
            after = before * bars[said]["factor"]
            rows.append(bars[said] | {"step": said, "before": before, "after": after})
            before = after
    return [*rows, _reached("measured speedup", found.measured.value, found.measured.low, found.measured.high)]


def _reached(name: str, value: float, low: float | None, high: float | None) -> Row:
    return {"step": name, "before": 0.0, "after": value, "total": True, "low": low, "high": high}


def _bars(axes: Axes, rows: list[Row]) -> None:
    for place, row in enumerate(rows):
        left, right = sorted((row["before"], row["after"]))
        loses = row["after"] < row["before"]
        colour = BLUE if row["total"] else VERMILLION if loses else GREEN
        axes.barh(place, right - left, left=left, height=0.62, color=colour, linewidth=0)
        said = f"{row['after']:.2f}"
        if not row["total"]:
            said = f"×{row['factor']:.3f}  ({_two_digits(row['ms'])} ms per token)"
            axes.plot([row["after"]] * 2, [place - 0.31, place + 1.31], color=FAINT, linewidth=0.7, zorder=3)
        elif row.get("low") is not None:
            said += f"  [{row['low']:.2f}, {row['high']:.2f}]"
        axes.annotate(
            said, (right, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, path_effects=HALO
        )
    axes.axvline(1, color=INK, linewidth=0.7, zorder=1)
    axes.set_yticks(range(len(rows)), [row["step"] for row in rows])
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, rows[0]["after"] * 1.12), xlabel="speedup so far")
    vertical_grid(axes)


def _two_digits(ms: float) -> str:
    """'+0.033', '-1.2', '+120': two digits, to the microsecond, and no minus before a 0."""
    ms = round(ms, 3) + 0
    return f"{ms:+.2g}" if abs(ms) < 10 else f"{ms:+.0f}"


GAP_TITLE = "The paper's measured speedups (EMP) against Theorem 3.8 on its own α and c (EXP)"
GAP_OF = (
    "T5-XXL 11B, the paper's Table 2, one TPU-v4. Blue: EXP, with the range that the printed digits leave. Arrow: from "
    "EXP to EMP, green if EMP is above, orange if below. Grey: up to the tokens per pass of Eq. 1, a speedup at no cost"
)
GAP_LINE = 0.34  # inches a row
COLOURS = {"above": GREEN, "below": VERMILLION, "within rounding": FAINT}


def gap(records: Records) -> Drawn:
    """Draw the paper's EMP beside its EXP, row by row."""
    found = gaps()
    figure, (axes,) = panels(width=WIDE, height=GAP_LINE * (len(found) + 2.2))
    for place, one in enumerate(found):
        _row(axes, place, one)
    axes.set_yticks(range(len(found)), [f"{one.name}, γ={one.row['gamma']}" for one in found])
    axes.set(ylim=(len(found) - 0.4, -0.9), xlim=(1, 5.2), xlabel="speedup")
    vertical_grid(axes)
    first = found[0]
    _named(axes, first.expected.value, "EXP", -14, "right")
    _named(axes, first.measured.value, "EMP", 0, "center")
    _named(axes, first.tokens_expected.value, "tokens, Eq. 1", 14, "left")
    legend = (
        "Grey: tokens per pass by Eq. 1. Blue: EXP, with the range of the printed digits. Arrows: to EMP, green "
        "where it lies above EXP, orange where it lies below"
    )
    values: pd.DataFrame = table(records).values
    return Drawn("gap", GAP_TITLE, figure, values, [legend, *remarks(found)], GAP_OF)


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
