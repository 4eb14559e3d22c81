"""The cost of passes in target steps: where the time of a pass goes, and v(n), the cost of verifying n tokens."""

import pandas as pd

from specbench.records.frame import MACHINE, PAIR, Records, measured, one_sample, short
from specbench.records.run_record import Row, RunRecord
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import HALO, captions, legend, nothing_yet, pair_name, under_all
from specbench.report.measured import passes_of
from specbench.report.style import (
    BLUE,
    FAINT,
    GOLD,
    INK,
    NARROW,
    PAPER,
    SLATE,
    VERMILLION,
    log2_axis,
    panels,
    with_intervals,
)

COST_TITLE = "Where the time of a pass goes"


PARTS = {"draft": VERMILLION, "verify": BLUE, "accept": GOLD, "host": SLATE}


MOST_BARS = 16


def cost(records: Records) -> Drawn:
    """Draw where the time of a pass goes, beside its tokens."""
    chosen = _choose(records.paper_runs)
    if chosen.empty:
        return nothing_yet("cost", COST_TITLE)
    rows = [parts(records.whole(run_id)) for run_id in chosen["run_id"]]
    figure, (axes,) = panels(width=6.4, height=0.9 + 0.235 * (len(rows) + chosen["draft"].nunique()))
    y, ticks, names = 0.0, [], []
    before = None
    for row, (_, record) in zip(rows, chosen.iterrows(), strict=True):
        heading = pair_name(record)
        if heading != before:
            y += 0.6 if before else 0.0
            axes.text(0, y, heading, va="center", fontsize=9, color=INK, path_effects=HALO)
            y, before = y + 0.95, heading
        left = 0.0
        for part, colour in PARTS.items():
            axes.barh(y, row[part], left=left, height=0.66, color=colour, edgecolor=PAPER, linewidth=0.5)
            left += row[part]
        tokens = row["tokens_per_pass"]
        axes.plot([tokens], [y], "o", color=INK, markeredgecolor=PAPER, markeredgewidth=0.7, markersize=6, zorder=5)
        axes.annotate(
            f"{tokens / left:.2f}×", (max(left, tokens), y), xytext=(7, 0), textcoords="offset points", va="center",
            fontsize=8.5, color=INK,
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
    legend(axes, [("target alone, 1 step", FAINT)], [0.13 * len(shown) + 0.22], mark="┊")
    notes = [
        "Bars: mean time of a pass, in mean steps of the target alone. Dots: tokens per pass. A dot beyond its bar "
        "is a gain, and their ratio, on the right, is the measured speedup. Accept: accepting drafted tokens and "
        "drawing the next token",
        *captions(chosen, "cost"),
    ]
    values = pd.DataFrame(rows)
    return Drawn("cost", COST_TITLE, figure, values, notes)


def parts(record: RunRecord) -> Row:
    """Return the mean time of a pass by part, in mean steps of the target alone; `host` is the rest of the pass."""
    alone = [prompt["baseline"] for prompt in record["prompts"]]
    step_s = sum(trace.decode_s for trace in alone) / sum(len(trace.tokens) for trace in alone)
    passes = passes_of(record)
    spent: dict[str, float] = {
        "draft": sum(p.draft_s for p in passes),
        "verify": sum(p.verify_s for p in passes),
        "accept": sum(p.accept_s for p in passes),
    }
    whole = sum(prompt["speculative"].decode_s for prompt in record["prompts"])
    spent["host"] = max(0.0, whole - sum(spent.values()))
    summary = record["summary"]
    return {"draft_name": summary["draft"], "temperature": summary["temperature"], "gamma": summary["gamma"]} | {
        part: seconds / len(passes) / step_s for part, seconds in spent.items()
    } | {"tokens_per_pass": sum(p.emitted for p in passes) / len(passes), "run_id": record["run_id"]}  # fmt: skip


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


VERIFY_TITLE = "Cost of verifying n tokens"


WHO = ["target", "hardware", "dtype"]


READ_MORE = ("lookahead", "pass")  # drafts with which a pass reads more than a proposal and a token


AXES = (1, 2, 4, 8, 16, 32, 64, 128)


def verify(records: Records) -> Drawn:
    """Draw v(n), the cost of verifying n tokens in one pass, of the runs of each target, beside its roofline."""
    frame = measured(pd.concat([records.chains, records.trees], ignore_index=True))
    frame = frame[frame["verify_cost"].notna() & ~frame["draft"].isin(READ_MORE)]
    if frame.empty:
        return nothing_yet("verify", VERIFY_TITLE)
    # n is taken from the mean pass: near the end of a completion a pass drafts fewer than γ tokens.
    frame = frame.assign(n=frame["drafted_per_pass"].astype(float).round().astype(int) + 1)
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, "reading_ms", "multiplying_ms"])))
    most = int(frame["n"].max())
    groups = list(frame.groupby(WHO, sort=False))
    figure, axes = panels(width=NARROW, height=0.6 + 2.1 * len(groups), rows=len(groups))
    points = []
    for panel, (who, group) in zip(axes, groups, strict=True):
        at_n = group.groupby("n")["verify_cost"].quantile([0.25, 0.5, 0.75]).unstack()
        floor = _roofline(group, range(1, most + 1))
        with_intervals(
            panel, at_n.index, at_n[0.5], at_n[0.25], at_n[0.75], fmt="o", color=BLUE, markersize=4, elinewidth=0.9,
            label="runs: median and quartiles",
        )  # fmt: skip
        if floor is not None:
            panel.plot(floor.index, floor, color=VERMILLION, linewidth=1.2, label="roofline")
        panel.axhline(1, color=FAINT, linewidth=0.7, zorder=1, label="Theorem 3.8: v = 1")
        log2_axis(panel, [n for n in AXES if n <= most])
        panel.set(ylim=(0, None), ylabel="v(n), target steps")
        panel.set_title(f"{who[0]} ({short(str(who[1]))}, {who[2]})")
        points.append(group.assign(roofline=None if floor is None else group["n"].map(floor)))
    axes[-1].set_xlabel("tokens verified in a pass, n")
    under_all(figure, axes)
    notes = [
        "Points: v of the runs whose mean pass verifies n tokens. Roofline: the larger of the time to read the weights "
        "once and the time of the products of n tokens, over one token's. What is above it is attention, "
        "the kernels' own cost and, where passes run in Python, the loop's share of the call",
        *captions(frame, "gamma"),
    ]
    values = pd.concat(points)[[*WHO, "draft", "temperature", "gamma", "n", "verify_cost", "roofline", "run_id"]]
    return Drawn("verify", VERIFY_TITLE, figure, values, notes)


def _roofline(group: pd.DataFrame, sizes: range) -> "pd.Series[float] | None":
    """v(n) of a model that is bound only by its weights' bytes and its products; None if they are not known."""
    least = group[["reading_ms", "multiplying_ms"]].dropna().astype(float).median()
    if least.isna().any():
        return None
    reading, multiplying = least
    return pd.Series({n: max(reading, n * multiplying) / max(reading, multiplying) for n in sizes})
