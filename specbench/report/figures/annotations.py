"""How figures show measured points: place, marker, error bars, the pair's name, the source, and what is missing."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from specbench.formatting import draft_name
from specbench.records.frame import MACHINE, PAIR, date
from specbench.report.figure import RECORDS, Drawn
from specbench.report.paper import fill, fill_twin
from specbench.report.style import FAINT, GRID, INK, LETTERS, MARKERS, PAPER, panels, spread
from specbench.report.tables.notes import named, of_proof

HALO = [withStroke(linewidth=2.2, foreground=PAPER)]  # keeps a name legible where a curve crosses it
SPACE = "\N{NO-BREAK SPACE}"
BAND = "95% interval of a pair's α"
MOST_NAMED = 3  # drafts that a line names; more are counted
APART = 0.008  # of alpha, between the points of two pairs: less than a marker's width
SIDE_BY_SIDE = f"Pairs whose α lie closer than {APART} are drawn side by side; the CSV has each α"
TICKS = (0.5, 0.6, 0.7, 0.8, 0.9)  # of alpha
Columns = tuple[str, str, str]


def placed(measured: pd.DataFrame) -> pd.DataFrame:
    """Add `place`, where a point stands on the axis of alpha.

    All points of a pair are at one place, and places are far enough apart that no point hides another.
    """
    if measured.empty:
        return measured.assign(place=[])
    firsts = _first_of_each_pair(measured)
    places = spread([float(alpha) for alpha in firsts["alpha"]], APART)
    of_pair = dict(zip((_pair(row) for _, row in firsts.iterrows()), places, strict=True))
    return measured.assign(place=[of_pair[_pair(row)] for _, row in measured.iterrows()])


def error_bars(
    axes: Axes, point: "pd.Series[object]", columns: Columns, colour: str, among: pd.DataFrame, hollow: bool = False
) -> None:
    """Draw one point of `among` at (`place`, value) with its 95% interval.

    `columns` names value, low and high. A point without a value is left out.
    """
    value, low, high = (point[column] for column in columns)
    if pd.isna(value):
        return
    x = float(point["place"])
    known = pd.notna(low) and pd.notna(high)
    style = MARKERS[_pairs(among).index(_pair(point)) % len(MARKERS)]
    axes.errorbar(
        [x], [value],
        yerr=[[value - low], [high - value]] if known else None,
        fmt=style, color=colour, markerfacecolor=PAPER if hollow or point["simulated"] else colour,
        markersize=4.5, markeredgewidth=1, elinewidth=0.8, capsize=0, zorder=5,
    )  # fmt: skip


def pair_lines(axes: Axes, measured: pd.DataFrame, more: Sequence[Artist] = ()) -> None:
    """Draw a line through the points of each pair and a band as wide as alpha's interval; name them and `more`."""
    firsts = _first_of_each_pair(measured)
    pairs = _pairs(measured)
    marks, named = [], axes.get_legend_handles_labels()[0]
    for _, first in firsts.iterrows():
        if pd.notna(first["alpha_low"]):
            axes.axvspan(first["alpha_low"], first["alpha_high"], color=GRID, alpha=0.45, linewidth=0, zorder=0)
        axes.axvline(float(first["place"]), color=FAINT, linewidth=0.6, linestyle=(0, (1, 3)), zorder=1)
        mark = MARKERS[pairs.index(_pair(first)) % len(MARKERS)]
        marks.append(Line2D([], [], marker=mark, linestyle="", color=INK, markersize=4.5, label=pair_name(first)))
    if marks:
        band = [Patch(color=GRID, linewidth=0, label=BAND)] if firsts["alpha_low"].notna().any() else []
        below(axes, [*(named or marks), *more, *band])


WIDEST = 52  # letters of two names that fit beside each other under one of two panels


def below(axes: Axes, marks: Sequence[Artist]) -> None:
    """The names of a panel's marks, under it; in two columns if they fit, since wide legends make panels narrow."""
    widest = max(len(str(mark.get_label())) for mark in marks)
    axes.legend(
        handles=list(marks), fontsize=7.5, loc="upper left", bbox_to_anchor=(-0.06, -0.15),
        ncols=2 if 2 * widest <= WIDEST else 1, handletextpad=0.2, borderpad=0, columnspacing=1.2,
    )  # fmt: skip


def under_all(figure: Figure, of: Sequence[Axes]) -> None:
    """The names of the marks of the panels `of`, each once, under all panels."""
    marks = {str(mark.get_label()): mark for axes in of for mark in axes.get_legend_handles_labels()[0]}
    widest = max(map(len, marks), default=1)
    figure.legend(
        handles=list(marks.values()), fontsize=7.5, loc="outside lower left", handletextpad=0.3, columnspacing=1.2,
        ncols=max(1, int(figure.get_figwidth() * LETTERS) // (widest + 6)),
    )  # fmt: skip


def pair_name(row: "pd.Series[object]") -> str:
    """Name a pair by draft and temperature, 't5-nano, T=0'; the notes also name the target."""
    name = f"{draft_name(str(row['draft']))}, T={row['temperature']:g}" + (
        f", {row['where']}" if row.get("where") else ""
    )
    return f"{name} (simulated)" if row["simulated"] else name


def captions(measured: pd.DataFrame, name: str) -> list[str]:
    """Return the records that the points come from, or the command that makes some."""
    if measured.empty:
        twin = f", or `{fill_twin(name)}` on the models that ship" if fill_twin(name) else ""
        return [f"No record yet for these axes: run `{fill(name)}`{twin}"]
    return sources(measured)


def setting(runs: pd.DataFrame, run_ids: Sequence[str]) -> str:
    """The targets, tasks, temperatures and machines of records, for a line under a figure's title."""
    of = runs[runs["run_id"].isin(run_ids)]
    if of.empty:
        return "only formulas and printed numbers"
    pairs = []
    for (target, task), group in of.groupby(["target", "task"], sort=False):
        drafts = list(dict.fromkeys(group["draft"]))
        said = f"{len(drafts)} drafts" if len(drafts) > MOST_NAMED else ", ".join(map(draft_name, drafts))
        pairs.append(f"{target} with {said} on {task}" + (" (simulated)" if group["simulated"].any() else ""))
    temperatures = ", ".join(f"{one:g}" for one in sorted(of["temperature"].unique()))
    machines = (of["hardware"].fillna("hardware not noted") + ", " + of["dtype"]).unique()
    where = f"T={temperatures}. {'; '.join(machines)}".replace(" ", SPACE)  # not broken
    return f"{'; '.join(pairs)}. {where}"


def sources(frame: pd.DataFrame) -> list[str]:
    """Return a line for each pair of models and machine, with its records."""
    lines = []
    for (target, draft, task, hardware), group in frame.drop_duplicates("run_id").groupby(
        ["target", "draft", "task", "hardware"], dropna=False
    ):
        where = hardware if pd.notna(hardware) else "hardware not noted"
        days = sorted({date(created) for created in group["created"]}) if "created" in group else []
        simulated = ["acceptance simulated"] if group["simulated"].all() else []
        kind = ", ".join([str(where), *days, *simulated])
        lines.append(f"{target} with {draft_name(str(draft))} on {task}, {kind}{RECORDS}{named(group)}")
    return [*lines, *of_proof(frame)]


def _first_of_each_pair(measured: pd.DataFrame) -> pd.DataFrame:
    return measured.drop_duplicates([*PAIR, *MACHINE]) if len(measured) else measured


def _pair(row: "pd.Series[object]") -> tuple[object, ...]:
    return tuple(str(row[key]) for key in (*PAIR, *MACHINE))


def _pairs(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    return list(dict.fromkeys(_pair(row) for _, row in frame.iterrows()))


def nothing_yet(name: str, title: str) -> Drawn:
    """Return an empty panel with the commands that fill it."""
    figure, (axes,) = panels(width=4.6, height=1.2)
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, f"no record yet\n{fill(name)}\n{fill_twin(name)}".rstrip(), ha="center", va="center", color=FAINT,
        transform=axes.transAxes, parse_math=False,
    )  # fmt: skip
    return Drawn(name, title, figure, pd.DataFrame(columns=["run_id"]), captions(pd.DataFrame(), name))


def legend(axes: Axes, names: Sequence[tuple[str, str]], places: Sequence[float], mark: str = "■") -> None:
    """Draw coloured squares with their names in one row above the panel, at `places` of its width."""
    for (text, colour), x in zip(names, places, strict=True):
        sign = partial(axes.annotate, xycoords="axes fraction", textcoords="offset points", fontsize=9, va="bottom")
        sign(mark, (x, 1.0), xytext=(0, 3), color=colour, family="DejaVu Sans")
        sign(text, (x, 1.0), xytext=(11, 3), color=INK)
