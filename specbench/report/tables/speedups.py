"""Table 1: operations and speed by the formulas. Tables 2 and 4: speedup expected, calibrated and measured.

Table 1 has Theorems 3.11 and 3.8 at c = c_hat = 0 and needs no record. Tables 2 and 4 have the same columns. Table 2
has one line of ours per row of the paper, at the paper's gamma, and for other pairs at the fastest gamma. Table 4 adds
Theorem 3.8 on the paper's own alpha and c, and shows every gamma and every rule we ran.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd

from specbench import theory
from specbench.analysis.forecast.theorems import BY_POSITION
from specbench.formatting import NONE, Column, cells, interval_of, number, titles
from specbench.records.cells import SIZE_THEN_SPEED, choose, remark
from specbench.records.frame import MACHINE, PAIR, Records, rule_name
from specbench.records.run_record import Row
from specbench.report.measured import matching, plain_sampling
from specbench.report.paper import checkpoints, fill, label, paper
from specbench.report.table import Table
from specbench.report.tables import notes
from specbench.report.tables.shorter import MOST_OTHERS, of_left_out, of_rows, shorter
from specbench.report.views import PASSES, WRONG, alpha, keys, view

EVERY_GAMMA = [*PAIR, "top_k", "top_p", "gamma_said", "accept", *MACHINE]  # rows of one pair differ in these
KEPT = (
    "lossy", "lossless", "simulated", "run_id", "hardware", "fitting", "chosen_for", "own_weights", "unproved",
    "passes_run",
)  # fmt: skip


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
    under = ["c = ĉ = 0: a draft that costs nothing. All cells follow from the formulas; there is nothing to run."]
    return Table("table1", "Table 1. Operations and speed by the formulas", shown, values, under)


def _times(column: pd.Series) -> list[str]:
    return [f"{value:.2f}×" for value in column]


def table2(records: Records, most: int | None = MOST_OTHERS) -> Table:
    """Table 2: measured speedups."""
    return _table("table2", "Table 2. Measured speedup", records, most, every_gamma=False)


def table4(records: Records, most: int | None = MOST_OTHERS) -> Table:
    """Table 4: expected and measured speedups."""
    return _table("table4", "Table 4. Expected and measured speedup", records, most, every_gamma=True)


def _table(name: str, title: str, records: Records, most: int | None, every_gamma: bool) -> Table:
    rows: list[Row] = []
    used = []
    ours = records.chains if every_gamma else records.paper_runs
    for printed in paper()["table2"]["rows"]:
        rows.append(_printed(printed))
        if every_gamma:
            rows.append(_by_theory(printed))
        found = _matching(ours, printed, every_gamma)
        used.append(found)
        rows += [_ours(record) for _, record in found.iterrows()] or [_missing(printed, name)]
    others = _pairs_beyond_paper(ours)
    if not every_gamma:
        others = _fastest(others)
    used.append(others)
    theirs = len(rows)
    rows += [_ours(record) for _, record in others.iterrows()]
    values = pd.DataFrame(rows)
    shown = [*rows[:theirs], *shorter(rows[theirs:], records, most)]
    sources = of_rows(pd.concat(used), shown)
    under = [
        "EXP: Theorem 3.8; by position: from the acceptance at each position, for drafts whose acceptance falls with "
        "the position. v: verification cost, the mean verification of a pass in target steps. calibrated: Theorem 3.8 "
        "with v + overhead in place of "
        "1 (by position: with the cost of the passes, in-sample: acceptance and cost are both of the run's own "
        "passes). EMP: decoding time per token, target alone over speculative; "
        "end to end adds encoder and prefill. best γ: by Theorem 3.8. [95% interval over prompts]",
        *notes.of_passes(sources),
    ]
    under += notes.of_alpha(sources)
    if sources["lossy"].any():
        under.append("lossy: the rule changes the distribution of completions")
    if not every_gamma and not others.empty:
        under.append("pairs that are not in the paper are shown at the fastest γ, among the runs with the most prompts")
    under += of_left_out(name, rows, shown)
    under += notes.foot(name, sources, values, records, bool((values["whose"] == "none").any()))
    return Table(name, title, pd.DataFrame([_show(row) for row in shown], columns=SHOWN), values, under)


def _printed(p: Row) -> Row:
    return _named(p) | {
        "whose": "paper", "alpha": p["alpha"], "c": p["c"],
        "expected": p["expected"], "empirical": p["empirical"], "star": p["star"],
    }  # fmt: skip


def _by_theory(p: Row) -> Row:
    alpha, c = p["alpha"], p["c"]
    expected, best = theory.walltime_improvement(alpha, p["gamma"], c), theory.optimal_gamma(alpha, c)
    return _named(p) | {"whose": "theory", "alpha": alpha, "c": c, "expected": expected, "best_gamma": best}


def _missing(p: Row, name: str) -> Row:
    return _named(p) | {"whose": "none", "command": fill(name)}


def _ours(r: "pd.Series[Any]") -> Row:
    known = pd.notna(r["c"]) and pd.notna(r["alpha"]) and not r["falls"]
    return _named(r) | {
        "whose": "simulated" if r["simulated"] else "ours",
        **{key: r[key] for key in ("alpha", "alpha_low", "alpha_high", "c", "verify_cost")},
        "expected": r["speedup_predicted"], "prediction": r["prediction"], "calibrated": r["speedup_calibrated"],
        "empirical": r["speedup_measured"], "empirical_low": r["speedup_low"], "empirical_high": r["speedup_high"],
        "end_to_end": r["speedup_end_to_end"],
        "end_to_end_low": r["speedup_end_to_end_low"], "end_to_end_high": r["speedup_end_to_end_high"],
        "best_gamma": theory.optimal_gamma(r["alpha"], r["c"]) if known else None,
        "rule": rule_name(r), **{key: r[key] for key in KEPT}, **{key: r.get(key) for key in keys(NUMBERS)},
    }  # fmt: skip


def _named(row: Any) -> Row:
    named = {key: row[key] for key in ("task", "target", "draft", "temperature", "gamma")}
    return named | {"gamma_said": row["gamma_said"] if "gamma_said" in row else f"{row['gamma']:g}"}


def _matching(frame: pd.DataFrame, printed: Row, every_gamma: bool) -> pd.DataFrame:
    """Our records of a row of the paper. The paper sampled without top-k or top-p."""
    keys = PAIR if every_gamma else [*PAIR, "gamma"]
    return choose(matching(plain_sampling(frame), printed, keys), EVERY_GAMMA)


def _pairs_beyond_paper(frame: pd.DataFrame) -> pd.DataFrame:
    """Records of pairs that the paper does not have."""
    theirs = {(row["task"], row["target"], row["draft"]) for row in paper()["table2"]["rows"]}
    keys = zip(frame["task"], frame["target"], frame["draft"], strict=True)
    mine = frame[pd.Series([key not in theirs for key in keys], index=frame.index, dtype=bool)]
    return choose(mine, EVERY_GAMMA)


def _fastest(frame: pd.DataFrame) -> pd.DataFrame:
    """The fastest record of each pair and machine, among its records over the most prompts, one for each gamma."""
    timed = frame.dropna(subset="speedup_measured")
    return choose(timed, [*PAIR, "top_k", "top_p", *MACHINE], SIZE_THEN_SPEED).sort_values(PAIR, kind="stable")


def _show(row: Row) -> Row:
    whose = row["whose"]
    names = {part: label(row[part]) for part in ("target", "draft")} if whose in AS_PRINTED else checkpoints(row)
    draft = names["draft"] + (" ★" if row.get("star") else "")
    names_of = {
        "task": label(row["task"]), "M_p": names["target"], "M_q": draft,
        "T": f"{row['temperature']:g}", "γ": ", ".join(filter(None, [row["gamma_said"], row.get("rule")])),
        "whose": "ours" if whose == "none" else whose,
    }  # fmt: skip
    if whose == "none":
        empty = dict.fromkeys(titles(NUMBERS), NONE) | dict.fromkeys(("α", "EMP"), "no record")
        return names_of | empty | {"record": f"none: `{row['command']}`"}
    return (
        names_of
        | cells(NUMBERS, row)
        | {
            "record": notes.record(row["run_id"], bool(row["simulated"]), remark(row["fitting"], row["chosen_for"]))
            if row.get("run_id")
            else NONE,
        }
    )


def _c(row: Row) -> str:
    return number(row["c"], 2 if row["whose"] in AS_PRINTED else 3)


def _expected(row: Row) -> str:
    return number(row["expected"], _digits(row)) + (" by position" if row.get("prediction") == BY_POSITION else "")


def _digits(row: Row) -> int:
    return 1 if row["whose"] == "paper" else 2


def _speed(key: str, wrong: str) -> Callable[[Row], str]:
    """The text of a speedup; `wrong` if the completions are not the target's."""

    def said(row: Row) -> str:
        if row.get("lossless") is False and not row["lossy"]:
            return wrong
        text = interval_of(row, key, digits=_digits(row))
        return text + (
            " lossy" if row.get("lossy") else " underpowered" if row.get("unproved") and text != NONE else ""
        )

    return said


AS_PRINTED = ("paper", "theory")
NUMBERS = view(
    "speedups", Column("alpha", "α", alpha), Column("c", "c", _c), Column("verify_cost", "v"),
    Column("expected", "EXP", _expected), Column("calibrated", "calibrated"), PASSES,
    Column("empirical", "EMP", _speed("empirical", WRONG)),
    Column("end_to_end", "end to end", _speed("end_to_end", NONE)), Column("best_gamma", "best γ", ".0f"),
)  # fmt: skip
SHOWN = ["task", "M_p", "M_q", "T", "γ", "whose", *titles(NUMBERS), "record"]
