"""Every figure by name: the paper's five, and what it does not show."""

from collections.abc import Callable, Sequence

from specbench.errors import UserError
from specbench.report.figure import Drawn
from specbench.report.figures.curves import figure2, figure4
from specbench.report.figures.optimum import figure3
from specbench.report.records import Records
from specbench.report.style import styled

FIGURES: dict[str, Callable[[Records], Drawn]] = {
    "figure2": figure2,
    "figure3": figure3,
    "figure4": figure4,
}


def build(names: Sequence[str], records: Records) -> list[Drawn]:
    """The named figures, all of them where none is named."""
    for name in names:
        if name not in FIGURES:
            raise UserError(f"{name}: no such figure; choose from {', '.join(FIGURES)}")
    with styled():
        return [FIGURES[name](records) for name in names or FIGURES]
