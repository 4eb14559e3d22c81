"""Figure 1: a real run's completion, a line for each target pass."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from specbench.records.frame import Records, measured
from specbench.records.schema import RunRecord
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet, sources
from specbench.report.measured import neural
from specbench.report.passes import Line, count, lines, typical_prompt
from specbench.report.style import BLUE, FAINT, GREEN, INK, PALE_BLUE, PALE_GREEN, PALE_RED, VERMILLION, WIDE, panels

SIZE = 7.6  # points
STEP = SIZE * 0.602 / 72  # inches a character of DejaVu Sans Mono takes
LOOKS = {"accepted": (PALE_GREEN, GREEN), "rejected": (PALE_RED, VERMILLION), "target": (PALE_BLUE, BLUE)}
WORDS = {"accepted": "drafted and accepted", "rejected": "drafted and rejected", "target": "from the target"}


def figure1(records: Records) -> Drawn:
    """Draw a run pass by pass."""
    found = _choose(records)
    if found is None:
        return nothing_yet("figure1", "Figure 1. A run, pass by pass")
    return sample(records.whole(found["run_id"]), None, found.to_frame().T)


def sample(record: RunRecord, number: int | None, row: pd.DataFrame | None = None, name: str = "figure1") -> Drawn:
    """Prompt `number` (from 0) of a record, or one that shows well."""
    index = typical_prompt(record) if number is None else number
    prompt = record["prompts"][index]
    rows = lines(record, prompt)
    height = (len(rows) + 2.4) * 0.185
    width = WIDE
    figure, (axes,) = panels(width=width, height=height)
    figure.set_layout_engine("none")
    axes.set_position((0, 0, 1, 1))  # so that x is in inches, as the width of a character is
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(len(rows) + 1.9, -0.5))
    for y, line in enumerate(rows):
        _line(axes, y, line)
    _key(axes, len(rows) + 1.1)
    summary = record["summary"]
    points = pd.DataFrame([
        {"pass": i + 1, "token": piece.text, "kind": piece.kind, "prompt": index, "run_id": record["run_id"]}
        for i, line in enumerate(rows) for piece in line.pieces
    ])  # fmt: skip
    marks = ["simulated"] if summary.get("simulated") else []
    if summary.get("accept", "exact") != "exact":
        marks.append(summary["accept"] + (" (lossy)" if summary["lossy"] else ""))
    axes.set_title(", ".join(marks))
    gamma = summary["gamma"] or summary.get("gamma_requested")
    notes = [
        f"{count(prompt)}; γ={gamma}, T={summary['temperature']:g}; ▪: end of sequence",
        "Each line is one run of the target; tokens drafted after a rejection are not shown",
        *(
            captions(row, "figure1")
            if row is not None
            else sources(pd.DataFrame([summary | {"run_id": record["run_id"]}]))
        ),
    ]
    return Drawn(name, "Figure 1. A run, pass by pass", figure, points, notes)


def _choose(records: Records) -> "pd.Series[Any] | None":
    """The paper's own setting if there is a run of it; otherwise the neural draft with the highest alpha."""
    frame = neural(measured(records.paper_runs))
    frame = frame[frame["gamma"] >= 3]
    if frame.empty:
        return None
    ranked = frame.assign(
        paper=(frame["target"] == "gpt-97m"), five=-(frame["gamma"] - 5).abs(), greedy=-frame["temperature"]
    )
    return ranked.sort_values(["paper", "greedy", "alpha", "five"]).iloc[-1]


def _line(axes: Axes, y: float, line: Line) -> None:
    x = 0.28
    axes.text(0.02, y, str(int(y) + 1), fontsize=6.5, color=FAINT, va="center", family="DejaVu Sans Mono")
    _text(axes, x, y, line.before, FAINT)
    x += len(line.before) * STEP
    for piece in line.pieces:
        pale, strong = LOOKS[piece.kind]
        text = piece.text
        lead = len(text) - len(text.lstrip(" "))
        begin, width = x + lead * STEP, (len(text) - lead) * STEP
        axes.add_patch(Rectangle((begin, y - 0.42), max(width, STEP), 0.84, color=pale, linewidth=0))
        _text(axes, begin, y, text.lstrip(" "), INK)
        if piece.kind == "rejected":
            axes.plot([begin, begin + width], [y, y], color=strong, linewidth=0.9)
        if piece.kind == "target":
            axes.plot([begin, begin + width], [y + 0.4, y + 0.4], color=strong, linewidth=1.1, solid_capstyle="butt")
        x += len(text) * STEP


def _key(axes: Axes, y: float) -> None:
    x = 0.28
    for kind, words in WORDS.items():
        _line_of_key(axes, x, y, kind, words)
        x += (len(words) + 3) * STEP


def _line_of_key(axes: Axes, x: float, y: float, kind: str, words: str) -> None:
    pale, strong = LOOKS[kind]
    axes.add_patch(Rectangle((x, y - 0.42), len(words) * STEP, 0.84, color=pale, linewidth=0))
    _text(axes, x, y, words, INK)
    if kind == "rejected":
        axes.plot([x, x + len(words) * STEP], [y, y], color=strong, linewidth=0.9)
    if kind == "target":
        axes.plot([x, x + len(words) * STEP], [y + 0.4, y + 0.4], color=strong, linewidth=1.1, solid_capstyle="butt")


def _text(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    # A token may hold '$', which must not start a formula.
    axes.text(x, y, text, fontsize=SIZE, color=colour, va="center", family="DejaVu Sans Mono", parse_math=False)
