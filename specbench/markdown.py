"""Markdown tables, for reports, model cards and the screen."""

from collections.abc import Iterable, Sequence

from tabulate import tabulate

from specbench.escaping import markdown_cell


def markdown_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table in GitHub's Markdown, its columns padded so that it can be read as plain text.

    Numbers are the caller's to format; a cell is one line, and neither its bars nor its tags are read as such.
    """
    cells = [[markdown_cell(cell) for cell in row] for row in rows]
    text: str = tabulate(
        cells,
        headers=[markdown_cell(name) for name in header],
        tablefmt="github",
        disable_numparse=True,
        preserve_whitespace=True,  # some rows are indented under the row above them
    )
    return text
