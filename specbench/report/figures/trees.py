"""Tokens a pass and speedup over the tokens that a pass verifies: chains, trees, and published figures.

A column for each temperature.
"""

import pandas as pd
from matplotlib.axes import Axes

from specbench.records.frame import Records, short
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import HALO, captions, nothing_yet
from specbench.report.style import FAINT, INK, MARKERS, PAPER, SERIES, VERMILLION, at_end, panels, spread
from specbench.report.tree_runs import CHAIN, SAME, published, tree_runs

TITLE = "Token trees: tokens a pass and speedup over size"
MOST_PAIRS = 3
ROWS = {
    "tokens a pass": ("tokens_per_pass", "tokens_low", "tokens_high"),
    "measured speedup": ("speedup_measured", "speedup_low", "speedup_high"),
}


def trees(records: Records) -> Drawn:
    """Draw tokens a pass and speedup over the tokens that a pass verifies."""
    runs = tree_runs(records)
    if runs.empty:
        return nothing_yet("trees", TITLE)
    runs = runs[runs["accept"] == "exact"]
    found = [pair for _, pair in runs.groupby(["target", "draft", "task", *SAME[4:]], sort=False)]
    pairs = sorted(found, key=_rank, reverse=True)[:MOST_PAIRS]
    shapes = list(dict.fromkeys(shape for pair in pairs for shape in pair["shape"]))
    shapes.sort(key=lambda shape: (shape != CHAIN, shape))
    temperatures = sorted({t for pair in pairs for t in pair["temperature"]})
    columns = len(temperatures) + 1
    figure, axes = panels(columns, width=2.7 * columns + 0.6, height=2.3 * 2 * len(pairs) + 0.3, rows=2 * len(pairs))
    for number, pair in enumerate(pairs):
        for line, (name, values) in enumerate(ROWS.items()):
            row = axes[(2 * number + line) * columns :][:columns]
            top = 1.12 * max(pair[values[2]].max(), pair[values[0]].max(), 1.0)
            for panel, temperature in zip(row, temperatures, strict=False):
                _panel(panel, pair[pair["temperature"] == temperature], values, shapes, top)
                panel.set_ylabel(name if panel is row[0] else "")
                if line == 0:
                    panel.set_title(_title(pair.iloc[0], temperature))
                else:
                    panel.set_xlabel("tokens verified in a pass, n")
            if number == 0:
                _published(row[-1], "tokens_per_pass" if line == 0 else "speedup", line == 0)
            else:
                row[-1].set_visible(False)
    prompts = " or ".join(f"{n:.0f}" for n in sorted(runs["prompts"].unique()))
    notes = [
        "Above tokens a pass, below measured speedup, each with 95% interval, over the tokens that the target reads in "
        f"a pass; a chain of n drafts γ = n − 1. {prompts} prompts a run",
        "Right: published figures of others, as printed in their sources (the CSV and the table `trees` name target, "
        "task and device); filled T=0, hollow T>0. Not from this project",
        *captions(pd.concat(pairs), "trees"),
    ]
    return Drawn("trees", TITLE, figure, pd.concat([*pairs, pd.DataFrame(published())]), notes)


def _rank(pair: pd.DataFrame) -> tuple[int, float]:
    """Pairs with more trees come first; of equals, those with more tokens a pass."""
    trees = pair[pair["shape"] != CHAIN]
    return len(trees.drop_duplicates(["temperature", "shape", "size"])), float(pair["tokens_per_pass"].max())


def _title(first: "pd.Series[object]", temperature: float) -> str:
    return f"{first['target']} with {first['draft']}, T={temperature:g} ({short(str(first['hardware']))})"


def _panel(axes: Axes, runs: pd.DataFrame, columns: tuple[str, str, str], shapes: list[str], top: float) -> None:
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
        axes.errorbar(
            line["size"], line[value], yerr=[line[value] - line[low], line[high] - line[value]], color=colour,
            fmt=MARKERS[number % len(MARKERS)], linestyle="-", linewidth=1.2, markersize=4, elinewidth=0.8,
        )  # fmt: skip
        x, y = float(line["size"].iloc[-1]), places.get(shape, float(line[value].iloc[-1]))
        at_end(axes, x, y, shape.partition(" ")[0], colour, dx=6, path_effects=HALO)
    axes.set_xscale("log", base=2)
    sizes = sorted({int(size) for size in known["size"]})
    ticks = [size for size in (2, 4, 8, 16, 32, 64, 128, 256) if sizes and sizes[0] <= size <= sizes[-1]]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
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
    axes.set_yticks(range(len(names)), [name.removesuffix(", –") for name in names], fontsize=7)
    axes.yaxis.tick_right()
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 7.2)
    axes.grid(axis="x")
    axes.set_title("published, not from this project" if titled else "")
    axes.set_xlabel("tokens a pass" if titled else "speedup")
