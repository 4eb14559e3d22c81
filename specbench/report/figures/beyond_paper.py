"""Measured speedup of every draft and rule (one line each, one panel per temperature), and of token trees by size."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from specbench.formatting import draft_name
from specbench.records.frame import MACHINE, PAIR, Records, short
from specbench.records.passes_run import IN_C, IN_PYTHON, PASSES_RUN
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import HALO, captions, nothing_yet
from specbench.report.figures.real_weights import TASKS
from specbench.report.measured import with_families
from specbench.report.style import (
    BLUE,
    FAINT,
    INK,
    MARKERS,
    PAPER,
    SERIES,
    VERMILLION,
    WIDE,
    at_end,
    log2_axis,
    panels,
    spread,
    with_intervals,
)
from specbench.report.tables.beyond import CHAIN, PLACE, SAME, comparable, entry_name, fastest, published, tree_runs

TITLE = "Speedup of drafts and rules"
WHERE = ["target", "task", *PLACE]  # what makes a panel, with the temperature
MOST_BLOCKS = 6
LOSSY = "lossy rules"
FAMILY_MARK = "\0"  # begins a line that names a family
LINE, FRAME, NAMES, PANEL = 0.185, 0.72, 1.75, 1.75  # inches: a line, what stands about a panel, names, a panel
ROOM = 0.9  # of the speeds' span, for the label after a mark


def beyond(records: Records) -> Drawn:
    """Draw the speedup of every draft and rule at its fastest gamma."""
    best = fastest(comparable(records))
    drawn = best.dropna(subset=["speedup_measured"])
    drawn = drawn[~drawn["task"].isin(TASKS)]  # the figure `real` has these
    if drawn.empty:
        return nothing_yet("beyond", TITLE)
    drawn = with_families(drawn, records)
    drawn = drawn.assign(entry=[entry_name(row) for row in drawn.to_dict("records")])
    drawn["family"] = drawn["family"].mask(drawn["lossy"].astype(bool), LOSSY)
    found = [block for _, block in drawn.groupby(WHERE, dropna=False, sort=False)]
    blocks = sorted(found, key=lambda block: -block["entry"].nunique())[:MOST_BLOCKS]
    lines = [_lines(block) for block in blocks]
    shown = pd.concat(blocks)
    temperatures = sorted(shown["temperature"].unique())
    heights = [LINE * (len(of_block) + 0.2) for of_block in lines]
    width = NAMES + PANEL * len(temperatures)
    height = sum(heights) + FRAME * len(blocks) + 0.1
    figure, axes = panels(len(temperatures), width=width, height=height, rows=len(blocks), heights=heights)
    for index, (block, order) in enumerate(zip(blocks, lines, strict=True)):
        span = _span(block)
        row = axes[index * len(temperatures) :][: len(temperatures)]
        for panel, temperature in zip(row, temperatures, strict=True):
            points = block[block["temperature"] == temperature]
            _panel(panel, points, order, named=panel is row[0])
            panel.set(xlim=span, xlabel="measured speedup" if block is blocks[-1] else "")
            panel.locator_params(axis="x", nbins=6)  # fewer fit by themselves, and 1 would have no number
            panel.set_title(_title(block.iloc[0], temperature, among=drawn))
            panel.set_visible(not points.empty or panel is row[0])
    kept = [*PAIR, *MACHINE, "accept", "gamma_said", "prompts", "alpha", "c", "verify_cost", "tokens_per_pass"]
    kept += ["passes_run", "speedup_measured", "speedup_low", "speedup_high", "lossy", "run_id"]
    notes = [*_notes(best, found, shown), *captions(shown, "beyond")]
    return Drawn("beyond", TITLE, figure, shown[kept], notes, _ends(shown))


def _span(block: pd.DataFrame) -> tuple[float, float]:
    """The axis of a block's panels: its speeds and 1, with room for the label after a mark."""
    low = min(1.0, block["speedup_measured"].min(), block["speedup_low"].min())  # 1 first: it stays beside NaN
    high = max(1.0, block["speedup_measured"].max(), block["speedup_high"].max())
    return low - 0.04 * (high - low), high + ROOM * (high - low)


def _notes(best: pd.DataFrame, found: list[pd.DataFrame], shown: pd.DataFrame) -> list[str]:
    prompts = " or ".join(f"{n:.0f}" for n in sorted(shown["prompts"].unique()))
    said = [
        _ends(shown),
        "Decoding time per token, target alone over speculative, with 95% interval, at the fastest γ that was "
        f"run, printed beside the mark; {prompts} prompts a run",
        *([PASSES_RUN] if shown["passes_run"].nunique() > 1 else []),
        "Hollow: a lossy rule. A draft without a mark was not run at that temperature",
    ]
    wrong = best[best["speedup_measured"].isna()]
    if not wrong.empty:
        said.append(f"No speedup, since completions differ by more than rounding: {', '.join(wrong['draft'])}")
    if len(found) > MOST_BLOCKS:
        said.append(f"{len(found) - MOST_BLOCKS} more pairs of target and task are only in the table")
    return said


def _ends(shown: pd.DataFrame) -> str:
    """The colours, the fastest lossless entry of each loop in words, and the machines.

    Loops are not ranked together.
    """
    machines = "; ".join((shown["hardware"].fillna("hardware not noted") + ", " + shown["dtype"]).unique())
    return f"{_fastest_in(shown, IN_C, 'blue')}. {_fastest_in(shown, IN_PYTHON, 'grey')}. Hollow: lossy. {machines}"


def _fastest_in(shown: pd.DataFrame, loop: str, colour: str) -> str:
    """'Passes in C, blue: fastest t5-nano on ende-mini, T=0, 1.44×'."""
    runs = shown[(shown["passes_run"] == loop) & ~shown["lossy"].astype(bool)].sort_values("speedup_measured")
    if runs.empty:
        return f"Passes {loop}, {colour}: none"
    best = runs.iloc[-1]
    named = f"{best['entry']} on {best['task']}, T={best['temperature']:g}, {best['speedup_measured']:.2f}×"
    return f"Passes {loop}, {colour}: fastest {named}"


def _lines(block: pd.DataFrame) -> list[str]:
    """The entries by family, each from the fastest to the slowest at its lowest temperature; lossy rules last.

    With several families, each follows its name.
    """
    coldest = block.sort_values("temperature", kind="stable").drop_duplicates("entry")
    ranked = coldest.sort_values("speedup_measured", ascending=False, kind="stable")
    families = sorted(dict.fromkeys(ranked["family"]), key=lambda family: family == LOSSY)
    if len(families) == 1:
        return list(ranked["entry"])
    of = {family: list(ranked[ranked["family"] == family]["entry"]) for family in families}
    return [line for family in families for line in (FAMILY_MARK + family, *of[family])]


def _title(first: "pd.Series[Any]", temperature: float, among: pd.DataFrame) -> str:
    """The title of a panel, with the machine if `among` is from several."""
    machine = f"\n({short(first['hardware'])}, {first['dtype']})" if len(among.drop_duplicates(PLACE)) > 1 else ""
    return f"{first['target']} on {first['task']}, T={temperature:g}{machine}"


def _panel(axes: Axes, points: pd.DataFrame, order: list[str], named: bool) -> None:
    for point in points.to_dict("records"):
        y, x, lossy = order.index(point["entry"]), point["speedup_measured"], point["lossy"]
        colour = VERMILLION if lossy else BLUE if point["passes_run"] == IN_C else FAINT
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
    axes.set_yticks(
        range(len(order)), [line.removeprefix(FAMILY_MARK) for line in order] if named else [""] * len(order)
    )
    for label, line in zip(axes.get_yticklabels(), order, strict=True):
        if line.startswith(FAMILY_MARK):
            label.set(color=FAINT, fontstyle="italic")
    axes.set_ylim(len(order) - 0.4, -0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


TREES_TITLE = "Token trees and chains: tokens per pass and speedup over the tokens verified"
MOST_PAIRS = 2
ROWS = {
    "tokens per pass (τ)": ("tokens_per_pass", "tokens_low", "tokens_high"),
    "measured speedup": ("speedup_measured", "speedup_low", "speedup_high"),
}


def trees(records: Records) -> Drawn:
    """Draw tokens per pass and speedup over the tokens that a pass verifies: chains, trees, and published figures.

    A row for each pair and temperature.
    """
    runs = tree_runs(records)
    if runs.empty:
        return nothing_yet("trees", TREES_TITLE)
    runs = runs[runs["accept"] == "exact"]
    found = [pair for _, pair in runs.groupby(["target", "draft", "task", *SAME[4:]], sort=False)]
    several = [pair for pair in found if pair[pair["shape"] != CHAIN]["size"].nunique() > 1] or found
    pairs = sorted(several, key=_rank, reverse=True)[:MOST_PAIRS]
    shapes = list(dict.fromkeys(shape for pair in pairs for shape in pair["shape"]))
    shapes.sort(key=lambda shape: (shape != CHAIN, shape))
    rows = [(pair, t) for pair in pairs for t in sorted(pair["temperature"].unique())]
    figure, axes = panels(2, width=WIDE, height=2.1 * (len(rows) + 1) + 0.3, rows=len(rows) + 1)
    for number, (pair, temperature) in enumerate(rows):
        for panel, (name, values) in zip(axes[2 * number :], ROWS.items(), strict=False):
            top = 1.12 * max(1.0, pair[values[2]].max(), pair[values[0]].max())  # 1 first: it stays beside NaN
            _tree_panel(panel, pair[pair["temperature"] == temperature], values, shapes, top)
            panel.set_ylabel(name)
            panel.set_title(_tree_title(pair.iloc[0], temperature))
            panel.set_xlabel("tokens verified in a pass, n" if number == len(rows) - 1 else "")
    _published(axes[-2], "tokens_per_pass", True)
    _published(axes[-1], "speedup", False)
    prompts = " or ".join(f"{n:.0f}" for n in sorted(runs["prompts"].unique()))
    notes = [
        "Left tokens per pass, right measured speedup, with 95% intervals, over the tokens that the target reads in "
        f"a pass; a chain of n drafts γ = n − 1. {prompts} prompts a run",
        "Below: published figures of others, as printed in their sources (the CSV and the table `trees` name target, "
        "task and device); filled T=0, hollow T>0. Not from this project",
        *captions(pd.concat(pairs), "trees"),
    ]
    return Drawn("trees", TREES_TITLE, figure, pd.concat([*pairs, pd.DataFrame(published())]), notes)


def _rank(pair: pd.DataFrame) -> tuple[int, float]:
    """Pairs with more trees come first; among equals, pairs with more tokens per pass."""
    trees = pair[pair["shape"] != CHAIN]
    return len(trees.drop_duplicates(["temperature", "shape", "size"])), float(pair["tokens_per_pass"].max())


def _tree_title(first: "pd.Series[object]", temperature: float) -> str:
    return (
        f"{first['target']} with {draft_name(str(first['draft']))}, T={temperature:g} ({short(str(first['hardware']))})"
    )


def _tree_panel(axes: Axes, runs: pd.DataFrame, columns: tuple[str, str, str], shapes: list[str], top: float) -> None:
    value, low, high = columns
    known = runs.dropna(subset=[value, low, high])
    last = known.sort_values("size").drop_duplicates("shape", keep="last").set_index("shape")
    right = known["size"].max()
    names = [shape for shape in shapes if shape in last.index and last.loc[shape, "size"] == right]
    places = dict(zip(names, spread([float(last.loc[shape, value]) for shape in names], 0.075 * top), strict=True))
    for number, shape in enumerate(shapes):
        line = known[known["shape"] == shape].sort_values("size")
        if line.empty:
            continue
        colour = INK if shape == CHAIN else SERIES[(number - 1) % len(SERIES)]
        with_intervals(
            axes, line["size"], line[value], line[low], line[high], color=colour, fmt=MARKERS[number % len(MARKERS)],
            linestyle="-", linewidth=1.2, markersize=4, elinewidth=0.8,
        )  # fmt: skip
        x, said = float(line["size"].iloc[-1]), shape.partition(" ")[0]
        if shape in places:
            at_end(axes, x, places[shape], said, colour, dx=6, path_effects=HALO)
        else:  # other lines go on to the right of it
            at_end(axes, x, float(line[high].iloc[-1]), said, colour, dx=0, dy=6, ha="center", path_effects=HALO)
    log2_axis(axes, [size for size in (2, 4, 8, 16, 32, 64, 128, 256) if known["size"].min() <= size <= right])
    axes.axhline(1, color=FAINT, linewidth=0.7, zorder=1)
    axes.set_ylim(0, top)


def _published(axes: Axes, column: str, titled: bool) -> None:
    frame = pd.DataFrame(published())
    frame = frame.assign(name=frame["method"] + ", " + frame["target"].str.partition(" ")[0] + ", " + frame["task"])
    names = list(dict.fromkeys(frame.sort_values("tokens_per_pass", ascending=False)["name"]))
    for row in frame.to_dict("records"):
        hollow = row["temperature"] > 0
        axes.plot(
            [row[column]], [names.index(row["name"])], "o", color=VERMILLION, markersize=4.5,
            markerfacecolor=PAPER if hollow else VERMILLION,
        )  # fmt: skip
    named = [name.removesuffix(", –") for name in names] if titled else [""] * len(names)
    axes.set_yticks(range(len(names)), named, fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 7.2)
    axes.grid(axis="x")
    axes.set_title("published, not from this project")
    axes.set_xlabel("tokens per pass (τ)" if titled else "speedup")
