"""Where the paper's measured speedups leave Theorem 3.8, and what its printed numbers say of the reason.

A pass of expected E tokens (Eq. 1) that costs gamma c + v steps gives E / (gamma c + v). With v = 1 that is the printed
EXP. From the printed EMP follows what one quantity alone would have to be; that v cannot be less than 1, nor c than 0,
rules some reasons out. Printed numbers are rounded, so everything is a range.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from specbench import theory
from specbench.measure.ends import passes_to_come
from specbench.records.schema import Row
from specbench.report.paper import label, paper

LONGEST = 200  # tokens of a completion
ALPHA, C, EMP = 0.005, 0.005, 0.05  # half of the last printed digit


@dataclass(frozen=True)
class Range:
    """What numbers that round to the printed give: for the printed, at least and at most."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Gap:
    """One row of Tables 2 and 4. `verify_cost`, `c` and `tokens` are what each alone would have to be for EMP."""

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

    @property
    def beyond_costs(self) -> bool:
        """Whether EMP is more than Eq. 1's tokens give even if drafting and verifying cost nothing but one step."""
        return self.measured.low > self.tokens_expected.high


def gaps() -> list[Gap]:
    """A row each of the paper's Tables 2 and 4."""
    return [_gap(row) for row in paper()["table2"]["rows"]]


def _gap(row: Row) -> Gap:
    def over(formula: str) -> Range:
        corners = [_numbers(row, *shift)[formula] for shift in product((-1, 0, 1), repeat=3)]
        return Range(_numbers(row, 0, 0, 0)[formula], min(corners), max(corners))

    names = ("tokens_expected", "expected", "measured", "ratio", "verify_cost", "c", "tokens")
    return Gap(row, *(over(name) for name in names))


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
    """The completion length at which the ends of completions alone would explain why EMP is below Equation 1.

    None if EMP does not imply fewer tokens than Equation 1.
    """
    if gap.verdict != "below":
        return None
    chances = np.full(gap.row["gamma"], gap.row["alpha"])
    needed = passes_to_come(chances, LONGEST)
    lengths = np.arange(1, LONGEST + 1)
    return float(np.interp(gap.tokens.value, lengths / needed[1:], lengths))
