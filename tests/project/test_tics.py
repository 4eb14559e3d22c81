"""Turns of phrase that `make check` counts in pages, help, docstrings, comments and on the screen: tools/tics.py."""

import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import tics


def test_the_repository_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert (tics.main(), capsys.readouterr().out) == (0, "")


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("It emits three tokens a pass.", "tokens a pass"),
        ("8 a second arrive.", "8 a second"),
        ("It prints a line a prompt.", "a line a prompt"),
        ("There are γ heads, a step each.", "a step each"),
        ("Trees do so, too.", ", too"),
        ("It has a path ([there, too](x.md)).", ", too"),
        ("It compares α alone.", "alone"),
        ("The margin is that of the argmax.", "that of"),
        ("The logits equal those\nof the module.", "those of"),
        ("It is used where it is missing.", "where it is"),
        ("Raises UserError where a key is unknown.", "Raises UserError where"),
        ("There are random numbers, one a draft token.", "one a draft token"),
        ("The network runs once a pass.", "once a pass"),
        ("Nothing else. Left out is the first step.", ". Left out is"),
        ("It copies the most tokens that match.", "the most tokens"),
    ],
)
def test_each_is_named_with_its_line(sentence: str, words: str) -> None:
    found = [(line, said) for line, said, _ in tics.tics(f"# Title\n\n{sentence}\n")]
    assert found == [(3, words)]


@pytest.mark.parametrize(
    "text",
    [
        "Time per token of the target alone.",
        "How many tokens a pass emits depends on α; too many are rejected.",
        "`tokens a second` is its name on the screen.",
        "```\n3.71 tokens a pass, too\n```",
        "<!-- from: results/x.csv -->\n| a |\n| --- |\n| the target over α alone: that of 2 |\n\nText.",
        "A page in a place where readers look.",
    ],
)
def test_code_records_and_plain_sentences_are_left(text: str) -> None:
    assert list(tics.tics(text)) == []


MODULE = '''"""A module.

Its speed is given in tokens a pass.
"""

LIMIT = 3  # rows, too


def f(x, alone):
    """Only x.

    Args:
        x: a number
            of the draft alone.
        alone: the other number.
    """
    # The margin is that
    # of the argmax.
    return f"{x} tokens a pass" + "one" " line each"
'''


def test_strings_of_a_module_are_read_without_docstrings_and_expressions() -> None:
    assert list(tics.strings(MODULE)) == [(19, "X tokens a pass"), (19, "one line each")]


def test_docstrings_and_comments_are_read_without_names_of_arguments(tmp_path: Path) -> None:
    found = [(first + line - 1, words) for first, text in tics.notes(MODULE) for line, words, _ in tics.tics(text)]
    assert found == [(3, "tokens a pass"), (14, "alone"), (6, ", too"), (17, "that of")]
    file = tmp_path / "module.py"
    file.write_text(MODULE)
    assert {(line, words) for line, words, _ in tics.tics_of(file)} == {*found}  # no strings: not in the package


def test_comments_of_a_c_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "kernels.h"
    file.write_text('char *alone = "alone";\n/* The sum of a row,\n   of bf16, too. */\nint rows; /* that of x */\n')
    assert [(line, words) for line, words, _ in tics.tics_of(file)] == [(3, ", too"), (4, "that of")]


def test_pages_modules_and_choices_are_read() -> None:
    names = {str(file.relative_to(ROOT)) for file in tics.files()}
    assert names >= {
        "README.md",
        "docs/run.md",
        "specbench/config/schema.py",
        "specbench/kernels/rows.h",
        "experiments/certify.py",
        "tools/tics.py",
        "conf/drafts.yaml",
        "experiments/gap.yaml",
    }
    assert not any(name.startswith("results/validate") for name in names)
