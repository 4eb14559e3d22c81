"""Every number of the paper's tables beside ours, with a verdict, and how many there are of each.

A number that two tables print is counted once: the α of Tables 2, 4 and 5 (l = 1) in Table 3, the measured speedups of
Table 4 in Table 2.
Records of the models that ship are of other models than the paper's, and fill no cell.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal, TypedDict

import pandas as pd

from specbench import theory
from specbench.formatting import NONE, interval, number
from specbench.records.catalog import digest
from specbench.records.frame import Records
from specbench.records.run_record import Row
from specbench.report.paper import label, paper
from specbench.report.table import Table
from specbench.report.tables import notes
from specbench.report.tables.acceptance import table3
from specbench.report.tables.lenience import speed_by_theory, table5
from specbench.report.tables.speedups import table1, table2

Verdict = Literal["recomputed", "reproduced", "too wide", "differs", "not run", "not public"]
# The verdicts on a number of ours, and those on a number that we do not have. `recomputed` is of a closed form,
# `reproduced` of a measurement.
OURS: tuple[Verdict, ...] = ("recomputed", "reproduced", "too wide", "differs")
MISSING: tuple[Verdict, ...] = ("not run", "not public")
VERDICTS = (*OURS, *MISSING)
WIDEST = {"α": 0.02, "EMP": 0.05}  # of an interval's half width: of α itself, of a speedup relative to it
KINDS = (("formulas", True), ("measurements", False))
FORMULA = "formula"  # instead of a record, if a number follows from other printed numbers
OVERVIEW = "overview"  # the name of the table that counts the verdicts
PAIR = ("target", "draft", "task", "temperature")


Ours = dict[tuple[Any, ...], Row]


class Cell(TypedDict):
    """One printed number.

    `low` and `high` are our 95% interval, or the range of a formula over numbers that round to the printed inputs.
    """

    table: str
    row: str
    quantity: str
    printed: float
    digits: int
    ours: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    run_id: str | None


def cells(records: Records) -> list[Cell]:
    """Every number of Tables 1 to 5 and of A.5's list."""
    ours = {_key(row): row for row in table2(records).values.to_dict("records") if row["whose"] == "ours"}
    return [*_formulas(records), *_measured(ours), *_alphas(records), *_costs(ours), *_lenience(records)]


def counts(scored: Sequence[Cell]) -> dict[str, dict[Verdict, int]]:
    """How many cells of each verdict there are: of numbers that follow from formulas, and of those to be measured."""
    kinds = {kind: Counter(one["verdict"] for one in scored if (one["run_id"] == FORMULA) is by) for kind, by in KINDS}
    return {kind: {verdict: found[verdict] for verdict in VERDICTS} for kind, found in kinds.items()}


def score(records: Records, scored: Sequence[Cell] | None = None) -> Table:
    """The cells as a table; `scored` are the cells of `records`, if they exist already."""
    scored = cells(records) if scored is None else scored
    values = pd.DataFrame(scored)
    ours = records.chains[records.chains["run_id"].isin(values["run_id"].dropna())]
    numbers = counts(scored)
    said = [f"{sum(of.values())} {kind} ({_counted(of)})" for kind, of in numbers.items()]
    under = [
        f"{len(scored)} numbers: " + "; ".join(said),
        "reproduced: our 95% interval holds a number that rounds to the printed, and is at most 0.02 (α) or 5% (EMP) "
        "to either side; too wide: a wider interval holds it; differs: it does not",
        "recomputed: a closed form over other printed numbers (formula) rounds to the printed, within the rounding of "
        "these numbers",
        "c (Table 4) is judged without an interval: reproduced means that it rounds to the printed number",
        "a number that two tables print is counted once: the α of Tables 2, 4 and 5 (l = 1) in Table 3, the measured "
        "speedups of Table 4 in Table 2",
        paper()["checkpoints_note"],
        "the models that ship are not the paper's, and fill no cell",
        *notes.of_records(ours),
    ]
    shown = pd.DataFrame([_show(cell) for cell in scored])
    return Table("score", "Score. The paper's numbers and ours", shown, values, under, {"counts": numbers})


def overview(scored: Sequence[Cell]) -> Table:
    """The paper's numbers, which of them we have, and why the others are missing, a row for each list."""
    rows = []
    for printed in paper()["score"]["lists"]:
        own = [
            one for one in scored if one["table"] == str(printed["table"]) and one["quantity"] in printed["quantities"]
        ]
        verdicts = Counter(one["verdict"] for one in own)
        reasons = [printed.get(verdict) or why(verdict) for verdict in VERDICTS if verdicts[verdict]]
        row: Row = {
            "the paper's numbers": printed["name"],
            "kind": "formula" if all(one["run_id"] == FORMULA for one in own) else "measurement",
            "printed": len(own),
        }
        row |= {str(verdict): verdicts[verdict] for verdict in VERDICTS}
        rows.append(row | {"why": "; ".join(filter(None, reasons))})
    values = pd.DataFrame(rows)
    totals = [_total(values[values["kind"] == kind], f"all {kind}s") for kind in ("formula", "measurement")]
    shown = pd.DataFrame([_share(row) for row in [*rows, *totals]])
    return Table(OVERVIEW, "Which numbers are the paper's, which are ours, what is missing", shown, values)


def why(verdict: Verdict) -> str:
    """Why a number of the paper has this verdict, in words; empty for the numbers that we have."""
    reasons: dict[str, str] = paper()["score"]["why"]
    return reasons.get(verdict, "")


def _total(rows: pd.DataFrame, name: str) -> Row:
    return {"the paper's numbers": name, **rows[["printed", *VERDICTS]].sum().to_dict(), "why": ""}


def _share(row: Row) -> Row:
    """A row of the overview in words: '28 recomputed' of ours, '65 not run' of what is missing."""
    return {
        "the paper's numbers": row["the paper's numbers"],
        "printed": str(row["printed"]),
        "ours": _counted({one: row[one] for one in OURS}) or NONE,
        "missing": _counted({one: row[one] for one in MISSING}) or NONE,
        "why": row["why"] or NONE,
    }


def _counted(verdicts: Mapping[Verdict, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items() if count)


def _show(cell: Cell) -> Row:
    digits = cell["digits"]
    return {
        "table": cell["table"],
        "row": cell["row"],
        "number": cell["quantity"],
        "printed": number(cell["printed"], digits),
        "ours": NONE if cell["ours"] is None else interval(cell["ours"], cell["low"], cell["high"], digits + 1),
        "verdict": cell["verdict"],
        "record": NONE if cell["run_id"] is None else digest(cell["run_id"]),
    }


def _cell(
    table: str, row: str, quantity: str, printed: float, digits: int, ours: float | None = None,
    low: float | None = None, high: float | None = None, run_id: str | None = None, public: bool = True,
) -> Cell:  # fmt: skip
    """A cell with its verdict: whether our interval and the numbers that round to the printed one overlap.

    An interval that is wider than `WIDEST` overlaps with too much to reproduce anything.
    """
    verdict: Verdict = "not run" if public else "not public"
    ours, low, high = (None if one is None or pd.isna(one) else float(one) for one in (ours, low, high))
    if ours is not None:
        slack = 0.5 * 10**-digits + 1e-9
        least, most = (ours if low is None else low), (ours if high is None else high)
        half = (most - least) / 2 / (ours if quantity == "EMP" else 1)
        if not (least <= printed + slack and most >= printed - slack):
            verdict = "differs"
        elif run_id == FORMULA:
            verdict = "recomputed"
        else:
            verdict = "too wide" if half > WIDEST.get(quantity, half) + 1e-9 else "reproduced"
    return {
        "table": table, "row": row, "quantity": quantity, "printed": printed, "digits": digits, "ours": ours,
        "low": low, "high": high, "verdict": verdict, "run_id": run_id if ours is not None else None,
    }  # fmt: skip


def _measured_cell(
    table: str, row: str, quantity: str, printed: float, digits: int, found: Row, name: str, public: bool = True
) -> Cell:
    """A cell whose number is `name` of our row `found`, which is empty if we have none."""
    value, low, high, run_id = (found.get(column) for column in (name, f"{name}_low", f"{name}_high", "run_id"))
    return _cell(table, row, quantity, printed, digits, value, low, high, run_id, public)


def _formulas(records: Records) -> Iterator[Cell]:
    for row in table1(records).values.to_dict("records"):
        for quantity in ("operations", "speed"):
            named = f"α={row['alpha']:g}, γ={row['gamma']}"
            yield _cell("1", named, quantity, row[f"{quantity}_paper"], 2, row[quantity], run_id=FORMULA)


def _measured(ours: Ours) -> Iterator[Cell]:
    """Cells of Table 2: the measured speedups."""
    for printed in paper()["table2"]["rows"]:
        found = ours.get(_key(printed), {})
        yield _measured_cell("2", _named(printed), "EMP", printed["empirical"], 1, found, "empirical")


def _costs(ours: Ours) -> Iterator[Cell]:
    """Cells of Table 4: EXP follows from the printed alpha and c, c is measured."""
    for printed in paper()["table2"]["rows"]:
        found = ours.get(_key(printed), {})
        yield _cell("4", _named(printed), "c", printed["c"], 2, found.get("c"), run_id=found.get("run_id"))
        yield _cell("4", _named(printed), "EXP", printed["expected"], 1, *_improvement(printed), run_id=FORMULA)


def _improvement(printed: Row) -> tuple[float, float, float]:
    """Theorem 3.8 on the printed alpha and c, and the least and most that numbers which round to them give."""
    alpha, c, gamma = printed["alpha"], printed["c"], printed["gamma"]
    ends = [theory.walltime_improvement(alpha + a, gamma, c + b) for a, b in product((-0.005, 0.005), repeat=2)]
    return theory.walltime_improvement(alpha, gamma, c), min(ends), max(ends)


def _alphas(records: Records) -> Iterator[Cell]:
    for row in table3(records).values.to_dict("records"):
        if pd.isna(row["alpha_paper"]):
            continue
        found = row if row["state"] == "measured" and row["simulated"] is not True else {}
        public = row["state"] != "not public"
        yield _measured_cell("3", _named(row), "α", row["alpha_paper"], 2, found, "alpha", public)


def _lenience(records: Records) -> Iterator[Cell]:
    """Table 5, and the list of A.5: its speeds follow from its own alpha and c, or do not."""
    for row in table5(records).values.to_dict("records"):
        if "alpha_paper" not in row or pd.isna(row["alpha_paper"]):
            continue
        named, table = f"{_named(row)}, l={row['lenience']:g}", "5" if row["temperature"] == 1 else "A.5"
        if row["lenience"] < 1:
            found = {} if row.get("run_id") is None or row.get("simulated") is True else row
            yield _measured_cell(table, named, "α", row["alpha_paper"], 2, found, "alpha")
        if pd.notna(row.get("speed_paper")):
            low, high = (speed_by_theory(row["alpha_paper"] + half, row["temperature"]) for half in (-0.005, 0.005))
            yield _cell("A.5", named, "speed", row["speed_paper"], 1, row["speed_theory"], low, high, FORMULA)


def _key(row: Row) -> tuple[Any, ...]:
    """The key of a row of Table 2."""
    return (*(row[key] for key in PAIR), int(row["gamma"]))


def _named(row: Row) -> str:
    """'EnDe, T5-XXL 11B with T5-small 77M, T=0'."""
    return f"{label(row['task'])}, {label(row['target'])} with {label(row['draft'])}, T={row['temperature']:g}"
