"""Table 1, and the steps from gamma + 1 to the speedup of every run."""

import pandas as pd

from specbench import theory
from specbench.analysis.explain.steps import Waterfall, waterfall
from specbench.records.choice import choose
from specbench.records.explanation import StepName
from specbench.records.frame import MACHINE, PAIR, Records, measured, rule_name
from specbench.records.schema import Row
from specbench.report.explanation import NAMES, name
from specbench.report.paper import label, paper
from specbench.report.table import NONE, Table, interval, number
from specbench.report.tables import notes

STEPS: tuple[StepName, ...] = tuple(NAMES)
HEADERS = {step: NAMES[step].partition(" (")[0] for step in STEPS}
SHOWN = ("task", "M_p", "M_q", "T", "γ", "ideal", *HEADERS.values(), "measured", "first lever", "record")
VALUES = ("run_id", *PAIR, "gamma", "ideal", *STEPS, "measured", "lever", "alone")


def levers(records: Records) -> Table:
    """Table of the factors of the speedup of every run."""
    frame = measured(records.chains).dropna(subset=["speedup_measured"])
    chosen = choose(frame, [*PAIR, "top_k", "top_p", "accept", "gamma_said", *MACHINE])
    found = [(row, waterfall(records.whole(row["run_id"]), resamples=0)) for row in chosen.to_dict("records")]
    under = [
        "factors of the speedup; from the ideal to the unexplained factor they multiply to the measured speedup. "
        "first lever: the step whose removal would raise the speedup most, and that speedup. "
        "`specbench explain RUN` adds intervals, milliseconds and explanations",
        *notes.of_choice(chosen, records),
        *notes.of_records(chosen),
        *notes.of_precision(chosen),
        *notes.of_filling("levers", not found),
    ]
    shown = pd.DataFrame([_show(row, one) for row, one in found], columns=list(SHOWN))
    values = pd.DataFrame([_values(row, one) for row, one in found], columns=list(VALUES))
    return Table("levers", "Levers. Where the speed of every run goes", shown, values, under)


def _show(row: Row, found: Waterfall) -> Row:
    factors = {step.name: step.factor.value for step in found.steps}
    rule = rule_name(row)
    lever = found.levers[0] if found.levers else None
    return {
        "task": label(row["task"]), "M_p": row["target"], "M_q": row["draft"], "T": f"{row['temperature']:g}",
        "γ": ", ".join(filter(None, [row["gamma_said"], rule])), "ideal": number(found.ideal),
        **{HEADERS[step]: f"×{factors[step]:.2f}" if step in factors else NONE for step in STEPS},
        "measured": interval(row["speedup_measured"], row["speedup_low"], row["speedup_high"]),
        "first lever": NONE if lever is None else f"{name(lever.name, found)}: {lever.alone:.2f}",
        "record": notes.marks([row["run_id"]], False),
    }  # fmt: skip


def _values(row: Row, found: Waterfall) -> Row:
    lever = found.levers[0] if found.levers else None
    return (
        {key: row[key] for key in ("run_id", *PAIR, "gamma")}
        | {"ideal": found.ideal, "measured": found.measured.value}
        | {step.name: step.factor.value for step in found.steps}
        | {"lever": lever and lever.name, "alone": lever and lever.alone}
    )


# Table 1: operations and speed by Theorems 3.11 and 3.8 at c = c_hat = 0. Needs no record.


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
