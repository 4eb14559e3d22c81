"""Where speed goes: in the paper between Theorem 3.8 (EXP) and what it measured (EMP), and in every run of ours.

A pass of expected E tokens (Eq. 1) that costs gamma c + v steps gives E / (gamma c + v). With v = 1 that is the printed
EXP. The printed EMP implies a value of each quantity if only that quantity differed; since v is at least 1 and c at
least 0, some reasons are ruled out. Printed numbers are rounded, so everything is a range.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from specbench import theory
from specbench.analysis.explain import Waterfall, waterfall
from specbench.analysis.forecast import passes_to_come
from specbench.formatting import NONE, draft_name, interval, interval_of, number, percentage
from specbench.records.cells import choose
from specbench.records.frame import MACHINE, PAIR, Records, measured, rule_name
from specbench.records.run_record import Row
from specbench.records.steps import StepName
from specbench.report.explanation import NAMES, name
from specbench.report.paper import label, paper
from specbench.report.table import Table
from specbench.report.tables import notes
from specbench.report.tables.shorter import MOST_OTHERS, of_left_out, of_rows, shorter

LONGEST = 200  # tokens of a completion
ALPHA, C, EMP = 0.005, 0.005, 0.05  # half of the last printed digit


@dataclass(frozen=True)
class Range:
    """The value for the printed numbers, and its least and greatest value for numbers that round to them."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Gap:
    """One row of Tables 2 and 4. `verify_cost`, `c` and `tokens`: the value that each would need by itself for EMP."""

    row: Row
    tokens_expected: Range
    expected: Range
    measured: Range
    ratio: Range
    verify_cost: Range
    c: Range
    tokens: Range

    @property
    def name(self) -> str:
        return f"{label(self.row['task'])}, {label(self.row['draft'])}, T={self.row['temperature']:g}"

    @property
    def verdict(self) -> str:
        """'below', 'above', or 'within rounding'."""
        if self.ratio.high < 1:
            return "below"
        return "above" if self.ratio.low > 1 else "within rounding"


FORMULAS = ("tokens_expected", "expected", "measured", "ratio", "verify_cost", "c", "tokens")  # of a Gap, in order


def gaps() -> list[Gap]:
    """A row each of the paper's Tables 2 and 4."""
    return [_gap(row) for row in paper()["table2"]["rows"]]


def _gap(row: Row) -> Gap:
    def rounding_range(formula: str) -> Range:
        corners = [_numbers(row, *shift)[formula] for shift in product((-1, 0, 1), repeat=3)]
        return Range(_numbers(row, 0, 0, 0)[formula], min(corners), max(corners))

    return Gap(row, *map(rounding_range, FORMULAS))


def _numbers(row: Row, a: int, b: int, e: int) -> dict[str, float]:
    """All numbers of a row whose alpha, c and EMP lie `a`, `b` and `e` half digits from the printed."""
    alpha, c, gamma = row["alpha"] + a * ALPHA, row["c"] + b * C, row["gamma"]
    measured, tokens = row["empirical"] + e * EMP, theory.expected_tokens(alpha, gamma)
    expected = theory.walltime_improvement(alpha, gamma, c)
    return {
        "tokens_expected": tokens,
        "expected": expected,
        "measured": measured,
        "ratio": measured / expected,
        "verify_cost": tokens / measured - gamma * c,
        "c": (tokens / measured - 1) / gamma,
        "tokens": measured * (gamma * c + 1),
    }


def length_of_ends(gap: Gap) -> float | None:
    """The completion length at which the ends of completions by themselves would explain why EMP is below Equation 1.

    None if EMP does not imply fewer tokens than Equation 1.
    """
    if gap.verdict != "below":
        return None
    chances = np.full(gap.row["gamma"], gap.row["alpha"])
    needed = passes_to_come(chances, LONGEST)
    lengths = np.arange(1, LONGEST + 1)
    return float(np.interp(gap.tokens.value, lengths / needed[1:], lengths))


def gap(records: Records) -> Table:
    """Table of the differences between the paper's EMP and EXP."""
    del records
    found = gaps()
    return Table(
        "gap",
        "Gap. The paper's measured speedup (EMP) against its expected speedup (EXP)",
        pd.DataFrame([_show(one) for one in found]),
        pd.DataFrame([_values(one) for one in found]),
        remarks(found),
    )


def remarks(found: list[Gap]) -> list[str]:
    """The implications of the printed numbers, and what cannot be known from them."""
    above, below = ([one for one in found if one.verdict == word] for word in ("above", "below"))
    never = [one for one in above if one.c.high < 0]
    least, most = (end(one.verify_cost.value for one in above) for end in (min, max))
    return [
        "computed from the printed α, γ, c and EMP; ranges: from the rounding of the printed numbers. EXP: Theorem "
        "3.8, with v = 1. v, c, tokens per pass: the value at which only this quantity would explain EMP",
        f"EMP lies above EXP by more than rounding in {len(above)} of {len(found)} rows. The cost of verifying and "
        f"accepting is not the reason: v would have to be {least:.2f} to {most:.2f}, and a pass over several tokens "
        f"costs at least a step. A smaller c would explain {len(above) - len(never)} of them; in {len(never)} even "
        "c = 0 would not. There a pass emitted more tokens than Eq. 1 predicts from the printed α, or a step of the "
        "baseline took longer than the step that c was measured against",
        f"EMP lies below EXP in {len(below)} rows: a pass cost more, or emitted fewer tokens. "
        + "; ".join(map(_below, below)),
        "the paper prints one c for T5-large; with it EMP lies above EXP on CNNDM, and the two rows of EnDe would "
        "require two values of c that rounding does not reconcile. So c explains them by itself only if it differed "
        "between rows",
        "not printed, so unknown: the lengths of the completions, v, the time of accepting, intervals. "
        "`specbench explain RUN` gives them for a run of ours",
    ]


def _below(one: Gap) -> str:
    return (
        f"{one.name}, γ={one.row['gamma']}: v and accepting of {one.verify_cost.value:.2f} steps, or a c of "
        f"{one.c.value:.3f} for {one.row['c']:g}, or {one.tokens.value:.2f} tokens per pass for "
        f"{one.tokens_expected.value:.2f} (if only ends explain it: completions of about {length_of_ends(one):.0f} "
        "tokens)"
    )


def _show(one: Gap) -> Row:
    return {
        "row": one.name,
        "γ": str(one.row["gamma"]),
        "tokens, Eq. 1": _range(one.tokens_expected),
        "EXP": _range(one.expected),
        "EMP": f"{one.measured.value:.1f}",
        "EMP / EXP": percentage(one.ratio.value, one.ratio.low, one.ratio.high, 0, less=1),
        "is": one.verdict,
        "only v": _range(one.verify_cost, least=1),
        "only c": _range(one.c, digits=3, least=0),
        "only tokens per pass": _range(one.tokens),
    }


def _range(one: Range, digits: int = 2, least: float | None = None) -> str:
    """A range in words; impossible if all of it lies below `least`."""
    impossible = " impossible" if least is not None and one.high < least else ""
    return interval(one.value, one.low, one.high, digits) + impossible


def _values(one: Gap) -> Row:
    row: Row = {key: one.row[key] for key in ("task", "target", "draft", "temperature", "gamma")}
    for field in FORMULAS:
        found: Range = getattr(one, field)
        row |= {field: found.value, f"{field}_low": found.low, f"{field}_high": found.high}
    return row | {"verdict": one.verdict, "length_of_ends": length_of_ends(one)}


STEPS: tuple[StepName, ...] = tuple(NAMES)
HEADERS = {step: NAMES[step].partition(" (")[0] for step in STEPS}
SHOWN = ("task", "M_p", "M_q", "T", "γ", "ideal", *HEADERS.values(), "passes", "measured", "largest loss", "record")
VALUES = ("run_id", *PAIR, "gamma", "ideal", *STEPS, "measured", "lever", "alone")


def levers(records: Records, most: int | None = MOST_OTHERS) -> Table:
    """Table of every run's speedup, by factor."""
    frame = measured(records.chains).dropna(subset=["speedup_measured"])
    chosen = choose(frame, [*PAIR, "top_k", "top_p", "accept", "gamma_said", *MACHINE])
    rows = chosen.to_dict("records")
    listed = shorter(rows, records, most)
    used = of_rows(chosen, listed)
    found = [(row, waterfall(records.whole(row["run_id"]), intervals=False)) for row in rows]
    under = [
        "factors of the speedup; from the ideal to the unexplained factor they multiply to the measured speedup. "
        "largest loss: the step whose removal would raise the speedup most, and that speedup. "
        "`specbench explain RUN` adds intervals, milliseconds and explanations",
        *of_left_out("levers", rows, listed),
        *notes.of_passes(used),
        *notes.of_choice(used, records),
        *notes.of_records(used),
        *notes.of_loops(used, records),
        *notes.of_precision(used),
        *notes.of_filling("levers", not found),
    ]
    shown = pd.DataFrame([_show_run(row, one) for row, one in found if row in listed], columns=list(SHOWN))
    values = pd.DataFrame([_run_values(row, one) for row, one in found], columns=list(VALUES))
    return Table("levers", "Losses. Where the speed of every run goes", shown, values, under)


def _show_run(row: Row, found: Waterfall) -> Row:
    factors = {step.step: step.factor.value for step in found.steps}
    rule = rule_name(row)
    lever = found.levers[0] if found.levers else None
    return {
        "task": label(row["task"]), "M_p": row["target"], "M_q": draft_name(row["draft"]),
        "T": f"{row['temperature']:g}",
        "γ": ", ".join(filter(None, [row["gamma_said"], rule])), "ideal": number(found.ideal),
        **{HEADERS[step]: f"×{factors[step]:.2f}" if step in factors else NONE for step in STEPS},
        "passes": row["passes_run"],
        "measured": interval_of(row, "speedup_measured", "speedup"),
        "largest loss": NONE if lever is None else f"{name(lever.step, found)}: {lever.alone:.2f}",
        "record": notes.record(row["run_id"]),
    }  # fmt: skip


def _run_values(row: Row, found: Waterfall) -> Row:
    lever = found.levers[0] if found.levers else None
    return (
        {key: row[key] for key in ("run_id", *PAIR, "gamma")}
        | {"ideal": found.ideal, "measured": found.measured.value}
        | {step.step: step.factor.value for step in found.steps}
        | {"lever": lever and lever.step, "alone": lever and lever.alone}
    )
