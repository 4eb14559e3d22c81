"""How every figure looks: sizes, fonts, colours, labels at the lines. The only file that sets them.

Colours keep a contrast of 3 or more on white and differ for the colour-blind (after Okabe and Ito, darkened); each has
a lighter twin that an SVG shows on a dark screen.
"""

import logging
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text

mpl.use("agg")  # before pyplot could ask for a screen

INK, FAINT, PAPER = "#1f2328", "#6e7781", "#ffffff"
GRID = "#d8dee4"
BLUE, VERMILLION, GREEN, PURPLE, GOLD, SLATE = "#0072b2", "#c44e00", "#00805e", "#a3417a", "#8f6b00", "#505a66"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, GOLD, SLATE)


# Pale colours of bands under tokens.
PALE_GREEN, PALE_RED, PALE_BLUE = "#c9ebdc", "#fbd5c2", "#cfe5f5"
TINT_BLUE, TINT_RED = "#7fb8d8", "#e5a77f"  # the same hue, for what prepares
# What a colour turns into on a dark screen; used in SVG only.
DARK = {
    INK: "#e6edf3", FAINT: "#9aa4af", PAPER: "#0d1117", GRID: "#30363d",
    BLUE: "#56b4e9", VERMILLION: "#ff8f4d", GREEN: "#35c99a", PURPLE: "#e38bbb", GOLD: "#e0b83a", SLATE: "#a8b3bf",
    PALE_GREEN: "#12503a", PALE_RED: "#6b2d10", PALE_BLUE: "#123f5e",
    TINT_BLUE: "#2b6f99", TINT_RED: "#8f4a22",
}  # fmt: skip


GAMMA_COLOURS = {1: BLUE, 3: VERMILLION, 5: GREEN, 7: PURPLE, 10: GOLD}


MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")


COLUMN, NARROW, WIDE = 3.6, 4.4, 7.2  # inches: a column of a page, a screen of 400 pixels, two columns
RC = {
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER,
    "font.family": "STIXGeneral", "mathtext.fontset": "stix", "font.size": 10,
    "axes.titlesize": 10, "axes.titleweight": "normal", "axes.titlelocation": "left", "axes.titlepad": 8,
    "axes.labelsize": 10, "xtick.labelsize": 9, "ytick.labelsize": 9,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "axes.titlecolor": INK,
    "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7,
    "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.major.size": 3, "ytick.major.size": 3,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": GRID, "grid.linewidth": 0.5, "axes.axisbelow": True,
    "lines.linewidth": 1.6, "lines.solid_capstyle": "round", "lines.markersize": 5,
    "legend.frameon": False, "figure.constrained_layout.use": True, "figure.dpi": 110, "savefig.dpi": 220,
    "svg.fonttype": "path", "svg.hashsalt": "specbench", "pdf.fonttype": 42,
}  # fmt: skip


@contextmanager
def styled() -> Iterator[None]:
    """Within this, every figure has this style, and no name in a record is a formula that cannot be drawn.

    A character that no font here has is a box, and no warning.
    """
    original: Any = Text.set_text
    log = logging.getLogger("matplotlib.mathtext")  # it logs what other text warns of
    level = log.level

    def drawable(text: Text, content: Any) -> None:
        original(text, content if not isinstance(content, str) or _is_drawn(content) else content.replace("$", r"\$"))

    with mpl.rc_context(RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        setattr(Text, "set_text", drawable)  # noqa: B010
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            setattr(Text, "set_text", original)  # noqa: B010
            log.setLevel(level)


@cache
def _is_drawn(text: str) -> bool:
    """Whether matplotlib can draw `text`, line by line; parts between two '$' of a line are formulas."""
    try:
        for line in filter(is_math_text, text.split("\n")):
            MathTextParser("path").parse(line)
    except ValueError:
        return False
    return True


def panels(
    columns: int = 1,
    width: float = COLUMN,
    height: float = 3.0,
    rows: int = 1,
    heights: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row, of equal height or of `heights`.

    Made without pyplot, so nothing is kept open.
    """
    figure = Figure(figsize=(width, height))
    return figure, list(figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flat)


HEAD, LETTERS = 0.17, 15  # inches of a line of a heading; small letters an inch


def headed(figure: Figure, title: str, under: str) -> None:
    """Write what a figure shows, and of what, above its panels, so that it is understood without its text."""
    width, height = figure.get_size_inches()
    small = textwrap.wrap(under, int(width * LETTERS * 1.3))
    lines = [*textwrap.wrap(title, int(width * LETTERS)), *small]
    taller = height + HEAD * len(lines) + 0.12
    figure.set_size_inches(width, taller)
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, 0, 1, height / taller))
    else:
        for axes in figure.axes:
            left, bottom, wide, high = axes.get_position().bounds
            axes.set_position((left, bottom * height / taller, wide, high * height / taller))
    for number, line in enumerate(lines):
        faint = number >= len(lines) - len(small)
        figure.text(
            0.04 / width, 1 - (0.05 + HEAD * number) / taller, line, va="top", fontsize=8.5 if faint else 10.5,
            color=FAINT if faint else INK, parse_math=False,
        )  # fmt: skip


def at_end(
    axes: Axes, x: float, y: float, text: str, colour: str, dx: float = 4, dy: float = 0, **options: Any
) -> None:
    """A label right of the point (x, y), in points of offset; not cut at the panel's edge."""
    axes.annotate(
        text, (x, y), xytext=(dx, dy), textcoords="offset points", color=colour, fontsize=9,
        va="center", annotation_clip=False, **options,
    )  # fmt: skip


def with_intervals(axes: Axes, x: Any, value: Any, low: Any, high: Any, **options: Any) -> None:
    """Points with their intervals as error bars."""
    axes.errorbar(x, value, yerr=[abs(value - low), abs(high - value)], **options)


def log2_axis(axes: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic x axis with only these ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def vertical_grid(axes: Axes) -> None:
    """The grid of a panel whose y axis names rows: along x, and no ticks on y."""
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.tick_params(axis="y", length=0)


def spread(values: list[float], apart: float) -> list[float]:
    """Positions as near to `values` as can be with at least `apart` between neighbours, in the order of `values`."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    # Blocks of labels that touch are moved together, each block centred on what it labels.
    blocks: list[list[int]] = []
    centres: list[float] = []
    for i in order:
        blocks.append([i])
        centres.append(values[i])
        while len(blocks) > 1 and centres[-1] - centres[-2] < apart * (len(blocks[-1]) + len(blocks[-2])) / 2:
            merged = blocks[-2] + blocks[-1]
            centre = sum(values[j] for j in merged) / len(merged)
            blocks[-2:], centres[-2:] = [merged], [centre]
    placed = list(values)
    for block, centre in zip(blocks, centres, strict=True):
        for rank, i in enumerate(block):
            placed[i] = centre + (rank - (len(block) - 1) / 2) * apart
    return placed
