"""Every figure by name: the paper's five, and others."""

from collections.abc import Callable, Sequence

from specbench.records.frame import Records
from specbench.report.figure import Drawn
from specbench.report.figures.beyond import beyond, trees
from specbench.report.figures.costs import cost, verify
from specbench.report.figures.curves import figure2, figure3, figure4
from specbench.report.figures.gammas import batches, gamma
from specbench.report.figures.parts import beta, online, position, strata
from specbench.report.figures.sample import figure1, figure5
from specbench.report.figures.waterfall import figure as waterfall
from specbench.report.figures.waterfall import gap
from specbench.report.style import styled
from specbench.report.table import Step
from specbench.report.table import build as make_each

FIGURES: dict[str, Callable[[Records], Drawn]] = {
    "figure1": figure1,
    "figure2": figure2,
    "figure3": figure3,
    "figure4": figure4,
    "figure5": figure5,
    "gamma": gamma,
    "position": position,
    "beta": beta,
    "cost": cost,
    "beyond": beyond,
    "trees": trees,
    "verify": verify,
    "waterfall": waterfall,
    "gap": gap,
    "batches": batches,
    "strata": strata,
    "online": online,
}


def build(names: Sequence[str], records: Records, step: Step = lambda: None) -> list[Drawn]:
    """The named figures, all of them where none is named; `step` is called before each."""
    with styled():
        return make_each(names, FIGURES, "figure", records, step)
