"""One prompt of a run: Figure 1, its completion with a line for each target pass, and Figure 5, its calls over time."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from specbench.analysis.degenerate import loops
from specbench.records.frame import MACHINE, PAIR, Records, measured, one_sample
from specbench.records.looping import MOST_LOOPING
from specbench.records.run_record import DecodingMode, PromptRecord, RunRecord
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, legend, nothing_yet, sources
from specbench.report.marked_passes import Line, count, lines, typical_prompt
from specbench.report.measured import neural
from specbench.report.paper import paper
from specbench.report.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    PALE_BLUE,
    PALE_GREEN,
    PALE_RED,
    PAPER,
    TINT_BLUE,
    TINT_RED,
    VERMILLION,
    WIDE,
    panels,
)

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
    figure, (axes,) = panels(width=WIDE, height=(len(rows) + 2.4) * 0.185)
    figure.set_layout_engine("none")
    axes.set_position((0, 0, 1, 1))  # so that x is in inches, as the width of a character is
    axes.set_axis_off()
    axes.set(xlim=(0, WIDE), ylim=(len(rows) + 1.9, -0.5))
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
        "Each line is one forward pass of the target; tokens drafted after a rejection are not shown",
        *(sources(pd.DataFrame([summary | {"run_id": record["run_id"]}])) if row is None else captions(row, "figure1")),
    ]
    return Drawn(name, "Figure 1. A run, pass by pass", figure, points, notes)


def _choose(records: Records) -> "pd.Series[Any] | None":
    """The paper's own setting if there is a run of it; otherwise the neural draft with the highest alpha.

    A run of which many completions loop comes last.
    """
    frame = neural(measured(records.paper_runs))
    frame = frame[frame["gamma"] >= 3]
    if frame.empty:
        return None
    ranked = frame.assign(
        paper=(frame["target"] == "gpt-97m"),
        sound=[_sound(records.whole(one)) for one in frame["run_id"]],
        five=-(frame["gamma"] - 5).abs(),
        greedy=-frame["temperature"],
    )
    return ranked.sort_values(["paper", "sound", "greedy", "alpha", "five"]).iloc[-1]


def _sound(record: RunRecord) -> bool:
    """Whether few completions loop."""
    looping = [loops(prompt["baseline"].tokens) for prompt in record["prompts"]]
    return sum(looping) <= MOST_LOOPING * len(looping)


def _line(axes: Axes, y: float, line: Line) -> None:
    x = 0.28
    axes.text(0.02, y, str(int(y) + 1), fontsize=6.5, color=FAINT, va="center", family="DejaVu Sans Mono")
    _text(axes, x, y, line.before, FAINT)
    x += len(line.before) * STEP
    for piece in line.pieces:
        text = piece.text.lstrip(" ")
        _token(axes, x + (len(piece.text) - len(text)) * STEP, y, text, piece.kind)
        x += len(piece.text) * STEP


def _key(axes: Axes, y: float) -> None:
    x = 0.28
    for kind, words in WORDS.items():
        _token(axes, x, y, words, kind)
        x += (len(words) + 3) * STEP


def _token(axes: Axes, x: float, y: float, text: str, kind: str) -> None:
    """Draw text on the colour of its kind; a rejected token is struck through, and one of the target underlined."""
    (pale, strong), width = LOOKS[kind], len(text) * STEP
    axes.add_patch(Rectangle((x, y - 0.42), max(width, STEP), 0.84, color=pale, linewidth=0))
    _text(axes, x, y, text, INK)
    if kind == "rejected":
        axes.plot([x, x + width], [y, y], color=strong, linewidth=0.9)
    if kind == "target":
        axes.plot([x, x + width], [y + 0.4, y + 0.4], color=strong, linewidth=1.1, solid_capstyle="butt")


def _text(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    # A token may hold '$', which must not start a formula.
    axes.text(x, y, text, fontsize=SIZE, color=colour, va="center", family="DejaVu Sans Mono", parse_math=False)


COLOURS = {"M_p": BLUE, "M_q": VERMILLION, "M_p encoder": TINT_BLUE, "M_q encoder": TINT_RED}
TIMELINE_TITLE = "Figure 5. A run over time"


@dataclass(frozen=True)
class Call:
    """One call, or a start; times in seconds from the start of the prompt."""

    what: str
    begin: float
    length: float


def figure5(records: Records) -> Drawn:
    """Draw the calls of both models over time as recorded, for two gammas and for the target alone."""
    chosen = _choose_timeline(records)
    if chosen.empty:
        return nothing_yet("figure5", TIMELINE_TITLE)
    chosen = chosen.sort_values("gamma", ascending=False)
    wholes = [records.whole(run_id) for run_id in chosen["run_id"]]
    index = _typical(wholes[0], min(len(whole["prompts"]) for whole in wholes))
    tracks = [(rf"$\gamma={w['summary']['gamma']}$", w, speculative_calls(w["prompts"][index])) for w in wholes]
    tracks.append(("standard", wholes[0], baseline_calls(wholes[0]["prompts"][index])))
    figure, (axes,) = panels(width=WIDE, height=0.55 + 0.52 * len(tracks))
    for y, (_, _, calls) in enumerate(tracks):
        _track(axes, y, calls)
    axes.set(ylim=(len(tracks) - 0.4, -0.85), xlabel="milliseconds")
    axes.set_yticks(range(len(tracks)), [name for name, _, _ in tracks])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0, 1000 * max(calls[-1].begin + calls[-1].length for _, _, calls in tracks) * 1.09)
    _timeline_key(axes)
    rows = [
        {"track": name.strip("$\\"), "call": call.what, "begin_s": call.begin, "length_s": call.length, "prompt": index,
         "run_id": whole["run_id"]}
        for name, whole, calls in tracks for call in calls
    ]  # fmt: skip
    tokens = len(wholes[0]["prompts"][index]["baseline"].tokens)
    notes = [
        f"Prompt {index + 1}, {tokens} tokens by the target alone: among the longest tenth of the completions, the "
        "prompt whose speedup is closest to the run's; times as recorded",
        "Calls of M_q within a pass are drawn with equal lengths, since only their sum is recorded; gaps are host work "
        "(accepting, drawing)",
        *captions(chosen, "figure5"),
    ]
    return Drawn("figure5", TIMELINE_TITLE, figure, pd.DataFrame(rows), notes)


def _typical(record: RunRecord, among: int) -> int:
    """Among the prompts with the longest tenth of completions, the index whose speedup is closest to the run's."""
    prompts = record["prompts"][:among]

    def seconds(way: DecodingMode, some: list[PromptRecord]) -> float:
        spent: float = sum(p[way].start_s + p[way].decode_s for p in some)
        return spent / sum(len(p[way].tokens) for p in some)

    whole = seconds("baseline", prompts) / seconds("speculative", prompts)
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]["baseline"].tokens))
    return min(
        order[: 1 + len(order) // 10],
        key=lambda i: abs(seconds("baseline", [prompts[i]]) / seconds("speculative", [prompts[i]]) - whole),
    )


def speculative_calls(prompt: PromptRecord) -> list[Call]:
    """Every call of a speculative decoding, in order."""
    ours = prompt["speculative"]
    draft_start = ours.draft_start_s
    calls = [Call("M_p encoder", 0.0, ours.start_s - draft_start)]
    if draft_start:
        calls.append(Call("M_q encoder", ours.start_s - draft_start, draft_start))
    now = ours.start_s
    for a_pass in ours.passes:
        count = a_pass.drafted
        calls += [Call("M_q", now + i * a_pass.draft_s / count, a_pass.draft_s / count) for i in range(count)]
        now += a_pass.draft_s
        calls.append(Call("M_p", now, a_pass.verify_s))
        now += a_pass.verify_s + a_pass.accept_s
    return calls


def baseline_calls(prompt: PromptRecord) -> list[Call]:
    """Every call of standard decoding."""
    alone = prompt["baseline"]
    calls = [Call("M_p encoder", 0.0, alone.start_s)]
    now = alone.start_s
    for step_s in alone.steps_s:
        calls.append(Call("M_p", now, step_s))
        now += step_s
    return calls


def _choose_timeline(records: Records) -> pd.DataFrame:
    """The records of one pair and machine at the paper's two gammas; the greedy one, and the higher alpha first."""
    wanted = paper()["figure5"]["gamma"]
    frame = neural(records.paper_runs)
    frame = one_sample(frame[frame["gamma"].isin(wanted)])
    best = frame.iloc[:0]
    rank: tuple[Any, ...] = ()
    for key, group in frame.groupby([*PAIR, *MACHINE], dropna=False):
        # All gammas, the paper's target, greedy, and then a draft that agrees well.
        this = (group["gamma"].nunique(), key[0] == "t5-xxl", -key[3], group["alpha"].max())
        if not rank or this > rank:
            best, rank = group.drop_duplicates("gamma"), this
    return best


def _track(axes: Axes, y: float, calls: list[Call]) -> None:
    for call in calls:
        axes.barh(
            y, 1000 * call.length, left=1000 * call.begin, height=0.62,
            facecolor=COLOURS[call.what], edgecolor=PAPER, linewidth=0.4,
        )  # fmt: skip
    end = calls[-1].begin + calls[-1].length
    decimals = 0 if end >= 0.1 else 1
    axes.annotate(
        f"{1000 * end:.{decimals}f} ms", (1000 * end, y), xytext=(4, 0), textcoords="offset points", va="center",
        fontsize=9, color=INK,
    )  # fmt: skip


def _timeline_key(axes: Axes) -> None:
    names = ((r"$M_p$ decoder", BLUE), (r"$M_q$ decoder", VERMILLION),
             (r"$M_p$ encoder or prefill", TINT_BLUE), (r"$M_q$ encoder or prefill", TINT_RED))  # fmt: skip
    legend(axes, names, (0.0, 0.16, 0.32, 0.58))
