"""A drawn figure with its numbers, and how it is written: clear SVG that turns dark with the screen, PDF, PNG, CSV.

Every file carries the run ids of the records that its points come from.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

import pandas as pd
from matplotlib.figure import Figure

from specbench.files import write_atomically
from specbench.report.style import DARK, styled
from specbench.report.table import csv_frame

FORMATS = ("svg", "pdf", "png")


RECORDS = ": records "  # in a note that names the records of a figure


@dataclass(frozen=True)
class Drawn:
    """`points` has one row for each measured point, with its run_id; `notes` says what a reader must know."""

    name: str
    title: str
    figure: Figure
    points: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    under: str = ""  # the line under the title, if it is not the setting of the records

    @property
    def run_ids(self) -> list[str]:
        if "run_id" not in self.points:
            return []
        return sorted(set(self.points["run_id"].dropna()))

    @property
    def alt(self) -> str:
        """The figure in words, for who cannot see it."""
        records = f"Records: {', '.join(self.run_ids)}." if self.run_ids else "No record: formulas only."
        return " ".join([f"{self.title}.", *(f"{note}." for note in self.notes), records])


def save(drawn: Drawn, folder: Path, formats: Sequence[str], key: str = "--output FOLDER") -> list[Path]:
    """Write the figure in `formats`, and its points as CSV beside it. `key` is how a user names another place."""
    files = []
    for form in formats:
        file = folder / f"{drawn.name}.{form}"
        files.append(write_atomically(file, svg(drawn) if form == "svg" else _bytes(drawn, form), key))
    return [*files, write_atomically(folder / f"{drawn.name}.csv", csv_frame(drawn.points).to_csv(index=False), key)]


def write_index(figures: Sequence[Drawn], folder: Path, formats: Sequence[str]) -> Path:
    """A README.md that shows the figures with what a reader must know of each."""
    form = next((form for form in ("svg", "png") if form in formats), formats[0])
    parts = [
        "# Figures\n\nDrawn by `specbench figures` from the records on disk; the numbers of each lie beside it as CSV."
    ]
    for drawn in figures:
        drawn_from = [note for note in drawn.notes if RECORDS in note]
        said = " ".join(f"{note[:1].upper()}{note[1:]}." for note in drawn.notes if note not in drawn_from)
        shown = f"![{drawn.title}]({drawn.name}.{form})"
        parts += [f"## {drawn.title}", shown, *filter(None, [said, " ".join(f"{note}." for note in drawn_from)])]
    file = folder / "README.md"
    return write_atomically(file, "\n\n".join(parts) + "\n", "--output FOLDER")


def svg(drawn: Drawn) -> str:
    """The figure as SVG text, with a title and description for screen readers, and a dark twin of every colour."""
    text = _bytes(drawn, "svg").decode()
    text = text[text.index("<svg") :]
    rules = "".join(
        f'[style*="{prop}: {light}"]{{{prop}:{dark}!important}}'
        for light, dark in DARK.items()
        for prop in ("fill", "stroke")
    )
    head = (
        f"<title>{escape(drawn.title)}</title><desc>{escape(drawn.alt)}</desc>"
        f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    )
    opened = re.match(r"<svg[^>]*>", text)
    assert opened is not None
    tag = opened.group()[:-1] + f' role="img" aria-label="{escape(drawn.title, {chr(34): "&quot;"})}">'
    return tag + head + text[opened.end() :]


def _bytes(drawn: Drawn, form: str) -> bytes:
    buffer = io.BytesIO()
    ids = " ".join(drawn.run_ids)
    metadata: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None, "Title": drawn.title, "Source": ids},
        "pdf": {"CreationDate": None, "Title": drawn.title, "Keywords": ids},
        "png": {"Title": drawn.title, "Description": drawn.alt},
    }
    with styled():
        drawn.figure.savefig(buffer, format=form, metadata=metadata[form], transparent=form == "svg")
    return buffer.getvalue()
