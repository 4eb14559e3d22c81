"""Markdown tables keep their cells as they were given, whatever stands in them."""

from specbench.markdown import markdown_table


def test_cells_are_not_read_as_numbers_and_bars_are_escaped() -> None:
    header, rule, *rows = markdown_table(("T", "a|b"), [("0.50", "1e-3"), ("  x", "p | q")]).splitlines()
    assert header.replace(" ", "") == r"|T|a\|b|" and set(rule) == set("|-")
    assert rows[0].startswith("| 0.50 | 1e-3 ") and rows[1].startswith(r"|   x  | p \| q ")
    assert len({len(line) for line in (header, rule, *rows)}) == 1


def test_a_table_without_rows_has_its_header() -> None:
    assert markdown_table(("draft", "γ"), []).splitlines()[0].split("|")[1].strip() == "draft"
