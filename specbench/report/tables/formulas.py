"""Table 1: operations and speed by Theorems 3.11 and 3.8 at c = c_hat = 0. Needs no record."""

import pandas as pd

from specbench import theory
from specbench.records.frame import Records
from specbench.report.paper import paper
from specbench.report.table import Table


def table1(records: Records) -> Table:
    """Table 1: operations and speed by the formulas."""
    del records
    printed = pd.DataFrame(paper()["table1"]["rows"])
    values = printed.rename(columns={"operations": "operations_paper", "speed": "speed_paper"})
    pairs = list(zip(values["alpha"], values["gamma"], strict=True))
    values["operations"] = [theory.operations_increase(alpha, gamma, c_hat=0) for alpha, gamma in pairs]
    values["speed"] = [theory.walltime_improvement(alpha, gamma, c=0) for alpha, gamma in pairs]
    shown = pd.DataFrame({
        "α": [f"{alpha:.1f}" for alpha in values["alpha"]],
        "γ": [str(gamma) for gamma in values["gamma"]],
        "operations, paper": _times(values["operations_paper"]),
        "Thm 3.11": _times(values["operations"]),
        "speed, paper": _times(values["speed_paper"]),
        "Thm 3.8": _times(values["speed"]),
    })  # fmt: skip
    notes = ["c = ĉ = 0: a draft that costs nothing. All cells follow from the formulas; there is nothing to run."]
    return Table("table1", "Table 1. Operations and speed by the formulas", shown, values, notes)


def _times(column: pd.Series) -> list[str]:
    return [f"{value:.2f}×" for value in column]
