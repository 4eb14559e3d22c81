"""Numbers and intervals as text; Markdown tables keep their cells as they were given, whatever stands in them."""

from math import nan
from typing import Any

import pytest

from specbench.formatting import Column, interval, interval_of, markdown_table, number, percentage, share, span
from specbench.report.alpha_tables import ALPHAS, _by_position, _of_children, _of_rules
from specbench.report.views import _speed
from specbench.stats import Interval


def test_numbers_and_intervals_have_a_dash_where_there_is_none() -> None:
    assert number(1.234) == "1.23" and number(None) == number(nan) == share(None) == span(nan, 1) == "–"
    assert (
        interval(1.5, 1.25, 1.75, 1) == "1.5 [1.2, 1.8]" and interval(1.5, None, 2) == interval(1.5, nan, 2) == "1.50"
    )
    assert interval(-1.5, -3, 0.1, 1, "+") == "-1.5 [-3.0, +0.1]" and span(0.7, 0.8, ".1f", " to ") == "0.7 to 0.8"
    row = {"speedup_measured": 2.0, "speedup_low": 1.9, "speedup_high": 2.1}
    assert interval_of(row, "speedup_measured", "speedup") == "2.00 [1.90, 2.10]" and interval_of(row, "alpha") == "–"
    assert percentage(1.031, 0.996, 1.066, less=1) == "+3.1% [-0.4, +6.6]" and percentage(0.1, None, None, 0) == "+10%"


@pytest.mark.parametrize(
    ("prompts", "low", "high", "said"),
    [
        (2, 0.01, 300.0, "2.00 (too few prompts or tokens)"),
        (2, 0.0, 1.0, "2.00 (too few prompts or tokens)"),
        (2, 1.9, 2.1, "2.00 [1.90, 2.10]"),  # two prompts that nearly agree
        (2, 2.0, 2.0, "2.00 (too few prompts or tokens)"),
        (3, 0.01, 300.0, "2.00 [0.01, 300.00]"),
        (4, 2e-9, 6127047.5, "2.00 (too few prompts or tokens)"),  # completions of one token
        (4, 0.0, 0.9, "2.00 [0.00, 0.90]"),  # a share may be 0
        (nan, 0.01, 300.0, "2.00 [0.01, 300.00]"),
        (2, None, None, "2.00"),
    ],
)
def test_an_interval_of_two_prompts_that_says_nothing_is_not_shown(
    prompts: float, low: float | None, high: float | None, said: str
) -> None:
    row = {"prompts": prompts, "speedup_measured": 2.0, "speedup_low": low, "speedup_high": high}
    assert ("too few prompts" in _speed(row)) == ("too few prompts" in said)  # in a list, too
    assert interval_of(row, "speedup_measured", "speedup") == said
    assert Column("speedup_measured", ends="speedup").text(row) == said


@pytest.mark.parametrize(
    ("prompts", "low", "high", "said"),
    [
        (1, None, None, "too few prompts or tokens"), (2, 0.5, 0.5, "too few prompts or tokens"),
        (2, 0.04, 0.95, "too few prompts or tokens"), (2, 0.4, 0.6, "0.400–0.600"),
        (3, 0.5, 0.5, "0.500–0.500"), (3, None, None, "–"),
    ],
)  # fmt: skip
def test_alpha_of_one_or_two_prompts_has_no_interval_that_says_nothing(
    prompts: int, low: float | None, high: float | None, said: str
) -> None:
    row: Any = {"draft": "a", "temperature": 0.0, "prompts": prompts, "tokens": 9}
    row |= {"silent": 0.0, "alpha_by_position": [Interval(0.5, low, high)]}
    row |= {"acceptance_of_children": {"fixed": [Interval(0.5, low, high)]}}
    for name in ("alpha", "alpha_match", "alpha_onehot"):
        row |= {name: 0.5, f"{name}_low": low, f"{name}_high": high}
    assert ALPHAS[-1].text(row) == said
    for table in (_by_position, _of_rules, _of_children):
        assert [*table([row]).columns[-1].cells] == [said]


def test_a_simulated_alpha_has_no_width() -> None:
    row = {"prompts": 2, "simulated": True, "alpha": 0.8, "alpha_low": 0.8, "alpha_high": 0.8}
    assert interval_of(row, "alpha") == "0.80 [0.80, 0.80]"


def test_cells_are_not_read_as_numbers_and_bars_are_escaped() -> None:
    header, rule, *rows = markdown_table(("T", "a|b"), [("0.50", "1e-3"), ("  x", "p | q")]).splitlines()
    assert header.replace(" ", "") == r"|T|a\|b|" and set(rule) == set("|-")
    assert rows[0].startswith("| 0.50 | 1e-3 ") and rows[1].startswith(r"|   x  | p \| q ")
    assert len({len(line) for line in (header, rule, *rows)}) == 1


def test_a_table_without_rows_has_its_header() -> None:
    assert markdown_table(("draft", "γ"), []).splitlines()[0].split("|")[1].strip() == "draft"


def test_a_cell_is_one_line_without_tags_and_control_characters() -> None:
    """A name in a record of someone else's was a script on the page that shows the table."""
    lines = markdown_table(("draft", "T < 1, <b>"), [("a\nb\r\n| c", "<script>alert(1)</script>\x1b[31m")]).splitlines()
    assert len(lines) == 3
    assert r"a b \| c" in lines[2] and "&lt;script>alert(1)&lt;/script>[31m" in lines[2]
    assert "T < 1, &lt;b>" in lines[0]
