"""Where the time of a pass goes, in target steps, and the tokens that it emits."""

import pandas as pd

from specbench.records.frame import MACHINE, PAIR, Records, one_sample
from specbench.records.schema import Row, RunRecord
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, legend, nothing_yet, pair_name
from specbench.report.measured import passes_of
from specbench.report.style import BLUE, FAINT, GOLD, INK, PAPER, SLATE, VERMILLION, panels

TITLE = "Where the time of a pass goes"
PARTS = {"draft": VERMILLION, "verify": BLUE, "accept": GOLD, "host": SLATE}
MOST_BARS = 16


def cost(records: Records) -> Drawn:
    """Draw where the time of a pass goes, beside its tokens."""
    chosen = _choose(records.paper_runs)
    if chosen.empty:
        return nothing_yet("cost", TITLE)
    rows = [parts(records.whole(run_id)) for run_id in chosen["run_id"]]
    figure, (axes,) = panels(width=6.4, height=0.9 + 0.235 * (len(rows) + chosen["draft"].nunique()))
    y, ticks, names = 0.0, [], []
    before = None
    for row, (_, record) in zip(rows, chosen.iterrows(), strict=True):
        heading = pair_name(record)
        if heading != before:
            y += 0.6 if before else 0.0
            axes.text(0, y, heading, va="center", fontsize=9, color=INK)
            y, before = y + 0.95, heading
        left = 0.0
        for part, colour in PARTS.items():
            axes.barh(y, row[part], left=left, height=0.66, color=colour, edgecolor=PAPER, linewidth=0.5)
            left += row[part]
        axes.plot(
            [row["tokens_per_pass"]],
            [y],
            "o",
            color=INK,
            markeredgecolor=PAPER,
            markeredgewidth=0.7,
            markersize=6,
            zorder=5,
        )
        axes.annotate(
            f"{row['tokens_per_pass'] / left:.2f}×", (max(left, row["tokens_per_pass"]), y), xytext=(7, 0),
            textcoords="offset points", va="center", fontsize=8.5, color=INK,
        )  # fmt: skip
        ticks.append(y)
        names.append(rf"$\gamma={record['gamma']:g}$")
        y += 1
    axes.set_yticks(ticks, names)
    axes.set(ylim=(y - 0.4, -0.6), xlabel="target steps")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.axvline(1, ymax=0.97, color=FAINT, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.08)
    shown = [part for part in PARTS if max(row[part] for row in rows) > 0.005]
    legend(axes, [(part, PARTS[part]) for part in shown], [0.13 * i for i in range(len(shown))])
    legend(axes, [("tokens per pass", INK)], [0.13 * len(shown)], mark="●")
    notes = [
        "Bars: mean time of a pass, in mean steps of the target alone. Dots: tokens per pass. A dot beyond its bar "
        "is a gain, and their ratio, on the right, is the measured speedup. Accept: accepting drafted tokens and "
        "drawing the next token",
        *captions(chosen, "cost"),
    ]
    values = pd.DataFrame(rows)
    return Drawn("cost", TITLE, figure, values, notes)


def parts(record: RunRecord) -> Row:
    """Return the mean time of a pass by part, in mean steps of the target alone; `host` is the rest of the pass."""
    alone = [prompt["baseline"] for prompt in record["prompts"]]
    step_s = sum(trace["decode_s"] for trace in alone) / sum(len(trace["tokens"]) for trace in alone)
    passes = passes_of(record)
    spent: dict[str, float] = {
        "draft": sum(p["draft_s"] for p in passes),
        "verify": sum(p["verify_s"] for p in passes),
        "accept": sum(p["accept_s"] for p in passes),
    }
    whole = sum(prompt["speculative"]["decode_s"] for prompt in record["prompts"])
    spent["host"] = max(0.0, whole - sum(spent.values()))
    summary = record["summary"]
    return {"draft_name": summary["draft"], "temperature": summary["temperature"], "gamma": summary["gamma"]} | {
        part: seconds / len(passes) / step_s for part, seconds in spent.items()
    } | {"tokens_per_pass": sum(p["emitted"] for p in passes) / len(passes), "run_id": record["run_id"]}  # fmt: skip


def _choose(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the records of one temperature, greedy if there are any, of the pairs with the most gammas."""
    greedy = frame[frame["temperature"] == 0]
    frame = one_sample(greedy if not greedy.empty else frame)
    groups = [group.sort_values("gamma") for _, group in frame.groupby([*PAIR, *MACHINE], dropna=False)]
    groups.sort(key=lambda group: (-len(group), -group["alpha"].iloc[0]))
    taken: list[pd.DataFrame] = []
    for group in groups:
        if not taken or sum(map(len, taken)) + len(group) <= MOST_BARS:
            taken.append(group)
    return pd.concat(taken) if taken else frame
