"""Markdown tables, for reports, model cards and the screen."""

from collections.abc import Iterable, Sequence

from tabulate import tabulate


def markdown_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table in GitHub's Markdown, its columns padded so that it can be read as plain text.

    Cells are written as they are: numbers are the caller's to format.
    """
    cells = [[_escaped(cell) for cell in row] for row in rows]
    text: str = tabulate(
        cells,
        headers=[_escaped(name) for name in header],
        tablefmt="github",
        disable_numparse=True,
        preserve_whitespace=True,  # some rows are indented under the row above them
    )
    return text


def _escaped(cell: object) -> str:
    return str(cell).replace("|", r"\|")
