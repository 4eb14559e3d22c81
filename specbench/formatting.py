"""Numbers, intervals and tables as text: in the same form on the screen, in Markdown, in reports and in model cards."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.escaping import markdown_cell

NONE = "–"  # in place of a missing number


# Drafts as their authors write them; in commands and records they have the names on the left.
AS_WRITTEN = {
    "dflash": "DFlash", "dspark": "DSpark", "eagle": "EAGLE", "eagle3": "EAGLE-3", "hydra": "Hydra", "medusa": "Medusa",
    "mtp": "MTP", "pard": "PARD", "pass": "PaSS", "peagle": "P-EAGLE", "specdec": "SpecDec",
}  # fmt: skip


def draft_name(name: str) -> str:
    """A draft's name on the screen."""
    return AS_WRITTEN.get(name, name)


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash if there is none (None or NaN)."""
    return NONE if _missing(value) else f"{value:z.{digits}f}"


def interval(value: float | None, low: float | None, high: float | None, digits: int = 2, sign: str = "") -> str:
    """A number with its 95% interval, if it has one: '1.92 [1.80, 2.05]'. `sign`: "+" writes signs."""
    if _missing(value) or _missing(low) or _missing(high):
        return number(value, digits)
    form = f"{sign}z.{digits}f"  # z: no minus before a zero
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def interval_of(row: Mapping[str, Any], name: str, prefix: str = "", digits: int = 2) -> str:
    """The number `name` of a row with the interval in `PREFIX_low` and `PREFIX_high`; the prefix is `name` if empty."""
    low, high = (row.get(f"{prefix or name}_{end}") for end in ("low", "high"))
    if says_nothing(row, low, high):
        return f"{number(row.get(name), digits)} ({TOO_FEW})"
    return interval(row.get(name), low, high, digits)


TOO_FEW = "too few prompts or tokens"
FEWEST, WIDE, WIDEST = 3, 10, 1e6  # prompts; times its low bound: of so few prompts, and of any number


def says_nothing(row: Any, low: float | None, high: float | None) -> bool:
    """Whether an interval is of two prompts, which is one degree of freedom, and very wide, or low is high.

    Or whether it is of a ratio of times, of any number of prompts, and a million times as high as low.
    """
    if low is None or high is None or (prompts := row.get("prompts")) is None:
        return False
    of_two = high > WIDE * low >= 0 or (low == high and not row.get("simulated"))  # what is chosen has no width
    return bool(prompts < FEWEST and of_two) or (high > 1 and high > WIDEST * low >= 0)


def share(value: float | None) -> str:
    """A share in percent, or a dash if there is none: '96%'."""
    return NONE if value is None or value != value else f"{100 * value:.0f}%"


def percentage(value: float, low: float | None, high: float | None, digits: int = 1, less: float = 0) -> str:
    """A difference with its 95% interval, if it has one, in percent: '+3.1% [-0.4, +6.6]'. A ratio's is `less` 1."""
    form = f"+z.{digits}f"
    said = f"{100 * (value - less):{form}}%"
    if low is None or high is None:
        return said
    return f"{said} [{100 * (low - less):{form}}, {100 * (high - less):{form}}]"


def span(low: float | None, high: float | None, form: str = ".3f", between: str = "–") -> str:
    """A 95% interval in a column of its own: '0.710–0.742'; a dash if there is none."""
    if _missing(low) or _missing(high):
        return NONE
    form = form.replace(".", "z.", 1)  # no minus before a zero
    return f"{low:{form}}{between}{high:{form}}"


def size(number: float | None) -> str:
    """Bytes in three digits: '1.24 GB' (of 10^9); '?' if they are not known."""
    if number is None:
        return "?"
    power = min(4, int(math.log10(max(number, 1)) // 3))
    return f"{number / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def duration(seconds: float | None) -> str:
    """A time for a person; '?' if it is not known."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 2 * 24 * 60:
        return f"{minutes / (24 * 60):,.0f} days"
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def more_memory(ratio: float) -> str:
    """The memory of target and draft over the target's: '14% more'."""
    return f"{100 * (ratio - 1):.0f}% more" if ratio >= 1 else f"{100 * (1 - ratio):.0f}% less"


def _missing(value: float | None) -> bool:
    return value is None or value != value


def markdown_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table in GitHub's Markdown, its columns padded so that it can be read as plain text.

    Numbers are the caller's to format; a cell is one line, and neither its bars nor its tags are read as such.
    """
    cells = [[markdown_cell(cell) for cell in row] for row in rows]
    from tabulate import tabulate  # only when a table is made, not at start-up

    text: str = tabulate(
        cells,
        headers=[markdown_cell(name) for name in header],
        tablefmt="github",
        disable_numparse=True,
        preserve_whitespace=True,  # some rows are indented under the row above them
    )
    return text


Of = Callable[[Any], Any]  # of a row


@dataclass(frozen=True)
class Column:
    """A number, or a name, in all places that show it.

    Attributes:
        name: its key in summaries, CSV and JSON.
        title: at the head of its column, or before it; or what makes this of a row.
        format: of Python for the number, '' for what is written as it is; or what makes the text of a row.
        unit: written after the number.
        note: what the number is; or what makes this of a row.
        ends: the keys of its 95% interval are ENDS_low and ENDS_high; None: no interval is shown.
        value: reads it from a row; None: the key `name`.
        when: whether a list of one row's numbers has it.
        measure: computes it for the summary of a run, from its prompts; None: the summary has it already.
        shown: views at whose end it stands.
    """

    name: str
    title: str | Of = ""
    format: str | Of = ".2f"
    unit: str = ""
    note: str | Of = ""
    ends: str | None = None
    value: Of | None = None
    when: Of = lambda row: True
    measure: Of | None = None
    shown: tuple[str, ...] = ()

    def of(self, row: Any) -> Any:
        """The number; None if the row has none."""
        return row.get(self.name) if self.value is None else self.value(row)

    def text(self, row: Any) -> str:
        """The cell in a table, or the text on the screen."""
        if callable(self.format):
            return str(self.format(row))
        value = self.of(row)
        if value is None or value != value:
            return NONE
        if not self.format or isinstance(value, str):
            return str(value)
        written: Callable[[Any], str] = lambda one: f"{one:{_without_minus(self.format)}}"  # noqa: E731
        said = written(value) + self.unit
        low, high = (row.get(f"{self.ends}_{end}") if self.ends else None for end in ("low", "high"))
        if says_nothing(row, low, high):
            return f"{said} ({TOO_FEW})"
        return said if _missing(low) or _missing(high) else f"{said} [{written(low)}, {written(high)}]"

    def title_of(self, row: Any) -> str:
        """The title in a row."""
        return str(self.title(row)) if callable(self.title) else self.title

    def note_of(self, row: Any) -> str:
        """The note in a row."""
        return str(self.note(row)) if callable(self.note) else self.note


def _without_minus(form: Any) -> str:
    """A format that writes no minus before a zero."""
    return f"z{form}" if str(form).endswith(("f", "%")) else str(form)


def by_name(*columns: Column) -> dict[str, Column]:
    """Columns by their names."""
    return {one.name: one for one in columns}


def cells(view: Iterable[Column], row: Any) -> dict[str, str]:
    """The cells of a row by the titles of their columns."""
    return {one.title_of(row): one.text(row) for one in view}


def titles(view: Iterable[Column]) -> list[str]:
    """The titles of a table's columns."""
    return [str(one.title) for one in view]
