"""Numbers by category, length of context and position in the text: they add up to the run's, and have intervals."""

import json
from pathlib import Path

import pytest

from specbench.analysis.acceptance.strata import strata
from specbench.cli import main
from tests.support.timed_prompts import prompt

PROMPTS = [prompt(8, 20, 0.5, "qa"), prompt(40, 33, 0.9, "code"), prompt(40, 100, 0.7, "qa"), prompt(8, 10, 0.2)]


def test_by_category() -> None:
    found = strata(PROMPTS, "category")
    assert [(one.name, one.prompts, one.tokens) for one in found] == [("code", 1, 40), ("none", 1, 8), ("qa", 2, 48)]
    assert [round(one.alpha.value, 4) for one in found] == [0.9, 0.2, round((4 + 28) / 48, 4)]
    low, high = found[2].alpha.low, found[2].alpha.high
    assert low is not None and high is not None and 0 < low < found[2].alpha.value < high < 1  # two prompts: wide
    assert found[0].alpha.low is None  # one prompt
    assert all(one.tokens_per_pass.value == 4 for one in found)
    assert all(one.speedup is not None and one.speedup.value == pytest.approx(2) for one in found)
    assert all(one.speedup is None for one in strata(PROMPTS, "category", with_speed=False))


def test_by_length_of_context() -> None:
    found = strata(PROMPTS, "length")
    assert [(one.name, one.prompts) for one in found] == [("1-32", 2), ("33-64", 1), ("65-128", 1)]


def test_by_position_in_the_text() -> None:
    found = strata(PROMPTS, "position")
    assert [(one.name, one.prompts, one.tokens) for one in found] == [
        ("1-16", 4, 48),
        ("17-32", 2, 32),
        ("33-64", 2, 16),
    ]
    assert found[1].alpha.value == pytest.approx(0.8)
    assert sum(one.tokens for one in found) == sum(len(one["beta"]) for one in PROMPTS)
    assert all(one.speedup is not None and one.speedup.value == pytest.approx(2) for one in found)  # 4 s in a pass of 2


def test_the_table_of_real_runs(folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    made = [{"prompt": "the old dog", "category": "animals"}, {"prompt": "a house", "category": "things"}]
    rows.write_text("".join(json.dumps(row) + "\n" for row in made))
    keys = ["dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=20", "warmup=0"]
    results = f"results={tmp_path}"
    assert main(["results", "--by", "category", results]) == 0
    said = capfd.readouterr().out
    assert (
        "no run whose rows have a category" in said and "there is no record at all: 'specbench run' makes one" in said
    )
    assert main(["run", f"target={folders['llama']}", "draft=random", f"task={rows}", results, *keys]) == 0
    capfd.readouterr()
    for by, groups in (("category", ["animals", "things"]), ("position", ["1-16", "17-32"]), ("length", ["1-32"])):
        assert main(["results", "--by", by, results, "--run", "last", "--format", "json"]) == 0
        found = json.loads(capfd.readouterr().out)
        assert [row["group"] for row in found] == groups
        assert all(row["alpha"] is not None and row["prompts"] for row in found)
    assert main(["results", "--by", "category", results]) == 0
    out = capfd.readouterr().out
    assert "animals" in out and "tokens per pass" in out and "their intervals are rough" in out
    assert main(["results", "--run", "last", results]) == 2
