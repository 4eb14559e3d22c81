"""A table as values and as text, and how it is written: markdown, LaTeX, CSV. Independent of the paper.

And how tables and figures are found by the names that a user gives.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pandas as pd

from specbench.errors import UserError, closest_first
from specbench.escaping import csv_cell, one_line
from specbench.formatting import markdown_table
from specbench.records.frame import Records

T = TypeVar("T")
WIDEST = 280  # characters of a row whose columns are padded: a longer one is wrapped on any screen
LONGEST = 10_000  # in characters: a longer one has no padding, which would be half of it
Step = Callable[[], None]


@dataclass(frozen=True)
class Table:
    """A table: each row has strings for a reader in `shown`, and plain numbers and run ids in `values`.

    `more` goes into its JSON beside them.
    """

    name: str
    title: str
    shown: pd.DataFrame
    values: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    more: Mapping[str, object] = field(default_factory=dict)


def render(table: Table, form: str) -> str:
    """The table in one of FORMATS. Raises UserError if there is no such format."""
    return selected([form], FORMATS, "format", "--format ")[0](table)


def markdown(table: Table) -> str:
    """The table as a Markdown section with its notes."""
    shown = markdown_table(table.shown.columns, table.shown.itertuples(index=False))
    if len(shown.partition("\n")[0]) > WIDEST or len(shown) > LONGEST:
        shown = re.sub(r" +(?= \|)|(?<=---)-+", "", shown)
    notes = [f"- {one_line(note)}" for note in table.notes]
    return "\n".join([f"## {table.title}", "", shown, *([""] if notes else []), *notes, ""])


def latex(table: Table) -> str:
    """The table as a LaTeX tabular with its notes; with its notes only if it has no columns."""
    title = _tex(table.title.partition(". ")[2])  # LaTeX numbers its tables itself
    head = " & ".join(_tex(name) for name in table.shown.columns)
    rows = [" & ".join(_tex(cell) for cell in row) + r" \\" for row in table.shown.itertuples(index=False)]
    notes = [rf"\par\smallskip\footnotesize {_tex(note)}" for note in table.notes]
    tabular = [
        rf"\begin{{tabular}}{{{'l' * len(table.shown.columns)}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    lines = [
        r"\begin{table}[t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{title}}}",
        rf"\label{{tab:{table.name}}}",
        *(tabular if len(table.shown.columns) else ()),
        *notes,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def csv(table: Table) -> str:
    """The table's plain values as CSV."""
    text: str = csv_frame(table.values).to_csv(index=False)
    return text


def csv_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with its texts as cells of CSV that no spreadsheet computes."""
    safe = frame.copy()
    for name in frame.select_dtypes(exclude="number").columns:
        safe[name] = frame[name].map(csv_cell)
    return safe


FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "csv": csv}
ENDINGS = {"markdown": "md", "latex": "tex", "csv": "csv"}


TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "τ": r"$\tau$",
    "ĉ": r"$\hat c$", "×": r"$\times$", "−": "--", "±": r"$\pm$", "★": r"$\star$",
    "≥": r"$\geq$", "Σ": r"$\sum$", "▪": r"$\cdot$", "·": r"$\cdot$", "–": "--", "`": "",
}  # fmt: skip


def _tex(cell: object) -> str:
    parts = re.split(r"(\b[MT]_[pq]\b)", str(cell))  # the paper's names of models and times are formulas
    return "".join(
        f"${part}$" if index % 2 else "".join(TEX.get(c, c) for c in part) for index, part in enumerate(parts)
    )


def selected(names: Sequence[str], among: Mapping[str, T], what: str, option: str = "") -> list[T]:
    """The values of `among` that `names` lists, or all of them for an empty list.

    `what` is the word for a value in errors, and `option` precedes the name in them. Raises UserError if a name does
    not exist.
    """
    for name in names:
        if name not in among:
            raise UserError(f"{option}{name}: no such {what}; choose from {', '.join(closest_first(name, among))}")
    return [among[name] for name in names or among]


def build(
    names: Sequence[str], among: Mapping[str, Callable[[Records], T]], what: str, records: Records, step: Step
) -> list[T]:
    """The named tables or figures of `records`, or all if none is named; `step` is called before each."""
    built = []
    for make in selected(names, among, what):
        step()
        built.append(make(records))
    return built
