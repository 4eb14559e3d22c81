"""What the printed numbers of Tables 2 and 4 say where EMP leaves EXP, and a row a run of where the speed goes."""

from pathlib import Path

import numpy as np
import pytest

from specbench import theory
from specbench.records.frame import Records
from specbench.report.tables import TABLES
from specbench.report.tables.gap import STEPS, gaps, length_of_ends
from tests.support.made_records import make


def test_the_extremes_are_the_papers() -> None:
    ratios = [one.ratio.value - 1 for one in gaps()]
    assert min(ratios) == pytest.approx(-0.32, abs=0.005) and max(ratios) == pytest.approx(0.29, abs=0.005)


def test_rows_beyond_rounding() -> None:
    found = gaps()
    verdicts = [one.verdict for one in found]
    assert (verdicts.count("above"), verdicts.count("below"), verdicts.count("within rounding")) == (8, 3, 1)
    for one in found:
        assert one.expected.low <= one.expected.value <= one.expected.high
        if one.verdict == "above":
            assert one.verify_cost.high < 1  # a pass would have to cost less than a step
        if one.verdict == "below":
            assert one.c.low > one.row["c"] and one.tokens.high < one.tokens_expected.value
    assert sum(one.verdict == "above" and one.c.high < 0 for one in found) == 3


def test_what_each_alone_would_have_to_be_gives_emp() -> None:
    for one in gaps():
        alpha, gamma, c = (one.row[key] for key in ("alpha", "gamma", "c"))
        emp = one.row["empirical"]
        assert theory.walltime_improvement(alpha, gamma, c, one.verify_cost.value) == pytest.approx(emp)
        assert theory.walltime_improvement(alpha, gamma, one.c.value) == pytest.approx(emp)
        assert one.tokens.value / (gamma * c + 1) == pytest.approx(emp)


def test_the_same_c_does_not_explain_t5_large_on_ende() -> None:
    cold, warm = (one for one in gaps() if one.row["draft"] == "t5-large" and one.row["task"] == "ende")
    assert cold.c.high < warm.c.low
    assert length_of_ends(cold) == pytest.approx(5, abs=1) and length_of_ends(gaps()[0]) is None


def test_the_table_says_no_more_than_the_numbers(nothing: Records) -> None:
    table = TABLES["gap"](nothing)
    under = " ".join(table.notes)
    assert len(table.values) == 12 and "in 8 of 12 rows" in under and "below EXP in 3 rows" in under
    assert "not printed, so unknown" in under
    assert table.shown["only v"].str.contains("impossible").sum() == 8


def test_the_levers_of_every_run(tmp_path: Path) -> None:
    cheap, dear = make(tmp_path, gamma=3, c=0.01), make(tmp_path, gamma=5, c=0.9)
    values = TABLES["levers"](Records(tmp_path)).values.set_index("run_id")
    assert values.loc[dear, "lever"] == "drafting" and values.loc[cheap, "lever"] == "rejections"
    for _, row in values.iterrows():
        factors = [row[step] for step in STEPS if step != "start" and not np.isnan(row[step])]
        assert row["ideal"] * np.prod(factors) == pytest.approx(row["measured"])
