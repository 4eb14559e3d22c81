"""Drafts of models with real weights, on the tasks of our own prompts: tokens per pass, and speedup."""

import pandas as pd
from matplotlib.axes import Axes

from specbench.records.cells import SIZE_THEN_SPEED, choose
from specbench.records.frame import MACHINE, PAIR, Records, measured
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet, under_all
from specbench.report.measured import plain_sampling, tokens_per_pass
from specbench.report.style import BLUE, FAINT, GREEN, INK, MARKERS, PURPLE, VERMILLION, panels
from specbench.report.tables.beyond import comparable, entry_name

TITLE = "Drafts of models with real weights: tokens per pass, and measured speedup"
TASKS = {"chat": BLUE, "code": VERMILLION, "summaries": GREEN, "translation": PURPLE}
PANELS = {
    "tokens per pass (τ)": ("tokens_per_pass", "tokens_low", "tokens_high"),
    "measured speedup": ("speedup_measured", "speedup_low", "speedup_high"),
}
LINE, FRAME = 0.3, 0.75  # inches: a draft, what stands about the panels of a temperature
APART = 0.17  # of a line, between the marks of two tasks
KEPT = [*PAIR, "accept", "gamma_said", *MACHINE, "prompts", "alpha", "c", "verify_cost", "passes_run"]


def real(records: Records) -> Drawn:
    """Draw tokens per pass, which no implementation changes, beside the speedup, which the costs decide."""
    runs = _runs(records)
    if runs.empty:
        return nothing_yet("real", TITLE)
    blocks = [block for _, block in runs.groupby(["target", "temperature", *MACHINE], dropna=False)]
    heights = [LINE * block["entry"].nunique() for block in blocks]
    size = {"width": 7.6, "height": sum(heights) + FRAME * len(blocks)}
    figure, axes = panels(2, rows=len(blocks), heights=heights, **size)
    for number, block in enumerate(blocks):
        middle = block.groupby("entry")["speedup_measured"].median()
        order = list(middle.sort_values(ascending=False).index)
        for panel, (label, columns) in zip(axes[2 * number :], PANELS.items(), strict=False):
            _panel(panel, block, order, columns)
            panel.set_xlabel(label)
        left, right = axes[2 * number : 2 * number + 2]
        left.set_yticks(range(len(order)), order)
        left.set_title(f"{block['target'].iloc[0]}, T={block['temperature'].iloc[0]:g}")
        right.axvline(1, color=INK, linewidth=0.7, zorder=1)
        right.set_yticks(range(len(order)), [_costs(block[block["entry"] == entry]) for entry in order], fontsize=7.5)
        right.yaxis.tick_right()
        right.set_title("right: c and v", loc="right", color=FAINT, fontsize=8)
    under_all(figure, axes)  # a task may have records at only one temperature
    prompts = " or ".join(f"{n:.0f}" for n in sorted(runs["prompts"].unique()))
    notes = [
        f"Marks: one run of {prompts} prompts each with 95% intervals; a colour is a task. Drafts from the fastest to "
        "the slowest by their median speedup",
        "Tokens per pass depend on models, prompts and γ, and not on how the loop is written. The speedup follows from "
        "them and from c (a draft step) and v (verifying γ + 1 tokens), in target steps: medians over the tasks",
        *captions(runs, "real"),
    ]
    names = [name for columns in PANELS.values() for name in columns]
    return Drawn("real", TITLE, figure, runs[[*KEPT, *names, "run_id"]], notes)


def _runs(records: Records) -> pd.DataFrame:
    """Chains and trees on the tasks of our own prompts, the fastest γ of each draft, rule, task and temperature."""
    trees = plain_sampling(measured(records.trees)).assign(policy="")
    found = pd.concat([comparable(records), trees], ignore_index=True)
    found = found[found["task"].isin(TASKS)].dropna(subset=["speedup_measured"])
    found = found.assign(entry=[entry_name(row) for row in found.to_dict("records")])
    found = choose(found, ["entry", "target", "task", "temperature", *MACHINE], SIZE_THEN_SPEED)
    tokens = [tokens_per_pass(records.whole(run_id)) for run_id in found["run_id"]]
    return found.assign(tokens_low=[one.low for one in tokens], tokens_high=[one.high for one in tokens])


def _costs(of: pd.DataFrame) -> str:
    c, v = of["c"].median(), of["verify_cost"].median()
    return ", ".join(f"{value:.2f}" for value in (c, v) if pd.notna(value))


def _panel(axes: Axes, block: pd.DataFrame, order: list[str], columns: tuple[str, str, str]) -> None:
    value, low, high = columns
    for number, (task, colour) in enumerate(TASKS.items()):
        of = block[block["task"] == task]
        if of.empty:
            continue
        y = [order.index(entry) + APART * (number - 1.5) for entry in of["entry"]]
        axes.errorbar(
            of[value], y, xerr=[of[value] - of[low], of[high] - of[value]], fmt=MARKERS[number], color=colour,
            markersize=3.5, elinewidth=0.7, linestyle="", label=task, zorder=3,
        )  # fmt: skip
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
