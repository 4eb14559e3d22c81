"""README and docs say what their records say: tools/docs_numbers.py."""

import copy
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import docs_numbers

BENCH = "results/bench-t5-mini-t5-nano-top1000-cpu-bfloat16.json"
VALIDATED = "results/validate-t5-mini-ende-mini-T0.md"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> "docs_numbers.Source":
    folder = tmp_path_factory.mktemp("results")
    (folder / "kept").symlink_to(docs_numbers.ROOT / "results" / "kept")
    return docs_numbers.Source(folder)


@pytest.mark.parametrize("page", docs_numbers.pages(), ids=lambda page: page.name)
def test_a_page_says_what_its_records_say(source: "docs_numbers.Source", page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert source.filled(text) == text
    assert not docs_numbers.typed(text)


def test_a_wrong_number_is_written_anew_and_the_rest_of_the_page_stays(source: "docs_numbers.Source") -> None:
    page = "a <!--default: alpha-->0.99 [0.98, 1.00]<!----> b\n\n<!-- from: run default -->\n```\nx\n```\n\nc | d\n"
    filled = source.filled(page)
    assert filled.startswith("a <!--default: alpha-->0.8") and "b\n\n<!-- from: run default -->\n```\nt5-mini" in filled
    assert filled.endswith("(written)\n```\n\nc | d\n") and source.filled(filled) == filled


def test_words_of_a_config_name_the_record_of_that_config(source: "docs_numbers.Source") -> None:
    """Words that are not given are the default run's; a digest stays the same when a record is measured again."""
    of_default = source.run("default")
    assert source.run("gamma=3") == of_default and source.run(of_default.rpartition("-")[2]) == of_default
    assert source.run("draft=lookup task=sum-mini gamma=5").startswith("t5-mini-lookup-sum-mini-T0-g5-")
    assert source.run("target=gpt-mini T=1 gamma=4").startswith("gpt-mini-gpt-nano-lm-mini-T1-g4-")
    assert source.run("draft=t5-nano tree='sequoia 16'").startswith("t5-mini-t5-nano-ende-mini-T0-gsequoia16-")


def test_lines_of_a_screen_are_chosen_by_their_names(source: "docs_numbers.Source") -> None:
    filled = source.filled("<!-- from: run default | α, speedup measured -->\n```\nx\n```\n")
    assert [line.split("  ")[0] for line in filled.splitlines()[3:-1]] == ["speedup measured", "α"]


def test_a_table_ends_where_it_ended(source: "docs_numbers.Source") -> None:
    comment = "<!-- from: results/tables/beyond.csv task=sum-mini,x temperature=0 | draft, γ, prompts, measured -->\n"
    filled = source.filled(f"{comment}| x |\n\nafter\n\n| another |\n")
    lines = filled.splitlines()
    assert lines[1:3] == ["| draft | γ | prompts | measured |", "| --- | --- | --- | --- |"] and lines[3].startswith(
        "| lookup | 3 |"
    )
    assert lines[-4:] == ["", "after", "", "| another |"]


def test_records_make_a_table_of_the_fastest(source: "docs_numbers.Source") -> None:
    comment = (
        "<!-- from: records target=gpt-mini draft=eagle tree=none {}| draft, T, {}γ, prompts, measured -->\n| x |\n"
    )
    every = source.filled(comment.format("", "")).splitlines()[3:]
    fastest = source.filled(comment.format("fastest ", "best ")).splitlines()[3:]
    assert len(fastest) == 2 and set(fastest) < set(every)


def test_columns_of_a_bench_and_of_a_table_are_chosen(source: "docs_numbers.Source") -> None:
    filled = source.filled(f"<!-- from: {BENCH} part=a | what, times faster, same completions -->\n| x |\n")
    assert filled.splitlines()[3].startswith("| autoregressive against generate | ")
    filled = source.filled(f"<!-- from: {BENCH} part=e 'what~=a pass' | what, c, v -->\n| x |\n")
    assert filled.splitlines()[3].startswith("| a pass, γ=2 | 0.")
    filled = source.filled(f"<!-- from: {VALIDATED} § Prediction errors | draft, error -->\n| x |\n")
    assert filled.splitlines()[1] == "| draft | error |"
    assert "1" in source.filled(f"<!--{BENCH} autoregressive against generate: ratio-->x<!---->")


@pytest.mark.parametrize("value", ["1.06 [1.01, 1.11]", "-2.7% [-6.8, +1.4]", ".82 [.81–.84]", "**1.6** [1.5, 1.7]"])
def test_a_typed_value_with_an_interval_is_found(value: str) -> None:
    assert docs_numbers.typed(f"so {value} here") and not docs_numbers.typed("widths=[4, 2], [1] and γ=[1,3]")
    assert not docs_numbers.typed(f"<!--default: alpha-->{value}<!---->")
    assert not docs_numbers.typed(f"<!-- from: records | draft -->\n| {value} |\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!--default: alhpa-->1<!---->", "no such value"),
        ("<!--draft=nothing: alpha-->1<!---->", "no such record"),
        (f"<!--{BENCH} nothing: ratio-->1<!---->", "has no row"),
        ("<!-- from: run default | nothing -->\n```\nx\n```\n", "no line nothing"),
        ("<!-- from: records draft=none | draft -->\n| x |\n", "no such record"),
        ("<!-- from: records draft=bigram | drft -->\n| x |\n", "no such column"),
        (f"<!-- from: {VALIDATED} § Nothing -->\n| x |\n", "no such heading"),
        ("<!-- from: results/tables/beyond.csv task=none | draft -->\n| x |\n", "no such rows"),
    ],
)
def test_a_source_that_is_not_there_is_an_error(source: "docs_numbers.Source", text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        source.filled(text)


def test_words_that_fit_two_records_name_neither(source: "docs_numbers.Source") -> None:
    twice = copy.copy(source)
    twice._runs = pd.concat([source._runs, source._runs])
    with pytest.raises(ValueError, match="several records fit"):
        twice.run("gamma=3")


def test_a_table_has_the_columns_without_which_it_misleads() -> None:
    runs = pd.DataFrame({"hardware": ["a", "a"], "dtype": ["float32"] * 2, "speedup_measured": [1.0, 2.0]})
    docs_numbers._require_titles(["draft", "best γ", "prompts", "measured"], ["fastest"], runs, "here")
    with pytest.raises(ValueError, match="its title is 'best γ'"):
        docs_numbers._require_titles(["draft", "γ", "prompts", "measured"], ["fastest"], runs, "here")
    with pytest.raises(ValueError, match="needs 'prompts'"):
        docs_numbers._require_titles(["draft", "measured"], ["prompts=30,91"], runs, "here")
    with pytest.raises(ValueError, match="needs 'same completions'"):
        docs_numbers._require_titles(["what", "times faster"], [], runs, "here")
    mixed = runs.assign(hardware=["a", "b"])
    docs_numbers._require_titles(["draft", "hardware"], [], mixed, "here")
    with pytest.raises(ValueError, match="several hardwares"):
        docs_numbers._require_titles(["draft"], [], mixed, "here")


def test_of_two_records_of_one_config_the_newest_counts_not_the_fastest() -> None:
    same = {"target": "t", "draft": "d", "task": "k", "temperature": 0.0, "accept": "exact", "tree": None, "batch": 1.0}
    rows = [("2026-01-01", 3.0, 3.2), ("2026-01-02", 3.0, 2.7), ("2026-01-01", 5.0, 2.9), ("2026-01-01", 5.0, 3.9)]
    runs = pd.DataFrame([{**same, "created": c, "gamma": g, "speedup_measured": s} for c, g, s in rows[:3]])
    assert docs_numbers._fastest(runs)["speedup_measured"].tolist() == [2.9]


def test_comments_and_numbers_that_nothing_writes_are_found() -> None:
    assert docs_numbers.unread("a\n\n<!-- from: run default -->\n\nno block\n") == ["<!-- from: run default -->"]
    assert docs_numbers.unread("a <!-- given --> b") == []
    assert docs_numbers.loose("decoding is 3.5× as fast and takes 12 ms") == ["3.5×", "12 ms"]
    assert docs_numbers.loose(f"decoding is 3.5× as fast {docs_numbers.GIVEN}") == []
    assert docs_numbers.loose("with a 95% interval") == []
    assert docs_numbers.unclaimed("<!--0a0a0a0a: speedup-->2<!---->") == ["0a0a0a0a: speedup"]


def test_a_document_has_a_day_and_is_the_one_that_is_listed() -> None:
    docs_numbers._require_listed("results/power.txt")
    with pytest.raises(ValueError, match=r"is not listed in results/documents\.csv"):
        docs_numbers._require_listed("results/README.md")


def test_an_older_document_says_its_day(source: "docs_numbers.Source") -> None:
    file = "results/peers-t5-mini-t5-nano-cpu-float32.json"
    page = source.filled(f"<!-- from: {file} part=h | what, times faster, note -->\n| x |\n")
    assert page.endswith("\nMeasured on 2026-11-27, before the other records.") and source.filled(page) == page
