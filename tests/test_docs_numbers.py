"""README and docs say what their records say: tools/docs_numbers.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import docs_numbers

RUN = "t5-mini-t5-nano-top1000-ende-mini-T0-g3-97efd7e2"  # the default run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> "docs_numbers.Source":
    folder = tmp_path_factory.mktemp("results")
    (folder / "kept").symlink_to(docs_numbers.ROOT / "results" / "kept")
    return docs_numbers.Source(folder)


@pytest.mark.parametrize("page", docs_numbers.pages(), ids=lambda page: page.name)
def test_a_page_says_what_its_records_say(source: "docs_numbers.Source", page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert source.filled(text) == text


def test_a_wrong_number_is_written_anew_and_the_rest_of_the_page_stays(source: "docs_numbers.Source") -> None:
    page = f"a <!--{RUN} alpha-->0.99 [0.98, 1.00]<!----> b\n\n<!-- from: run {RUN} -->\n```\nx\n```\n\nc | d\n"
    filled = source.filled(page)
    assert filled.startswith(
        f"a <!--{RUN} alpha-->0.83 [0.81, 0.85]<!----> b\n\n<!-- from: run {RUN} -->\n```\nt5-mini with"
    )
    assert filled.endswith("(written)\n```\n\nc | d\n") and source.filled(filled) == filled


def test_a_table_of_a_csv_file_ends_where_it_ended(source: "docs_numbers.Source") -> None:
    comment = "<!-- from: results/tables/beyond.csv task=sum-mini,x temperature=0 | draft, γ, measured -->\n"
    filled = source.filled(f"{comment}| x |\n\nafter\n\n| another |\n")
    lines = filled.splitlines()
    assert lines[1:3] == ["| draft | γ | measured |", "| --- | --- | --- |"] and lines[3].startswith(
        "| lookup | 3 | 1."
    )
    assert lines[-4:] == ["", "after", "", "| another |"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"<!--{RUN} alhpa-->1<!---->", "no such value"),
        ("<!-- from: results/validate-t5-mini-ende-mini-T0.md § Nothing -->\n| x |\n", "no such heading"),
        ("<!-- from: results/tables/beyond.csv task=none | draft -->\n| x |\n", "no such rows"),
    ],
)
def test_a_source_that_is_not_there_is_an_error(source: "docs_numbers.Source", text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        source.filled(text)
