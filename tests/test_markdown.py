"""Markdown tables keep their cells as they were given, whatever stands in them."""

from specbench.formatting import markdown_table


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
