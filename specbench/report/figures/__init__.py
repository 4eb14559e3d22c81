"""Every figure by name: the paper's five, and others."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from specbench.records.contended import contended
from specbench.records.frame import Records
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import setting
from specbench.report.figures.beyond_paper import beyond, trees
from specbench.report.figures.curves import figure2, figure3, figure4
from specbench.report.figures.gammas import batches, gamma
from specbench.report.figures.of_parts import beta, online, position
from specbench.report.figures.of_prompts import figure1, figure5
from specbench.report.figures.pass_costs import cost, verify
from specbench.report.figures.predictions import lossy, predictions
from specbench.report.figures.real_weights import real
from specbench.report.figures.waterfall import gap, waterfall
from specbench.report.style import headed, styled
from specbench.report.table import Step
from specbench.report.table import build as make_each

_ALL: tuple[Callable[[Records], Drawn], ...] = (
    figure1, figure2, figure3, figure4, figure5, predictions, gamma, position, beta, cost, beyond, real, lossy, trees,
    verify, waterfall, gap, batches, online,
)  # fmt: skip
FIGURES = {draw.__name__: draw for draw in _ALL}


def build(names: Sequence[str], records: Records, step: Step = lambda: None) -> list[Drawn]:
    """The named figures, or all if none is named; `step` is called before each.

    Each names the records that it leaves out because the machine was contended.
    """
    with styled():
        drawn: list[Drawn] = make_each(names, FIGURES, "figure", records, step)
        for one in drawn:
            headed(one.figure, one.title, one.under or setting(records.all_runs, one.run_ids))
    return [replace(one, notes=[*one.notes, *contended(records.disturbed)]) for one in drawn]
