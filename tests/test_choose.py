"""alpha of many drafts, the kept sample, lists on the command line, recommendations and their proof."""

import json
from pathlib import Path

import pytest

from specbench import store
from specbench.cli import main
from specbench.cli.lists import split
from specbench.errors import UserError

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]

LISTS = {
    "none": (["draft=unigram", "gamma=3"], (["draft=unigram", "gamma=3"], [[]])),
    "brackets": (["draft=[unigram,bigram]", "gamma=3"], (["gamma=3"], [["draft=unigram"], ["draft=bigram"]])),
    "commas": (["draft=unigram,bigram"], ([], [["draft=unigram"], ["draft=bigram"]])),
    "folders": (["draft.path=[/a,'/b c']"], ([], [["draft.path=/a"], ["draft.path='/b c'"]])),
    "both": (
        ["draft=[unigram,bigram]", "draft.path=/a"],
        ([], [["draft=unigram"], ["draft=bigram"], ["draft.path=/a"]]),
    ),
    "temperatures": (
        ["draft=[a,b]", "sampling.temperature=[0,1]"],
        ([], [[d, t] for d in ("draft=a", "draft=b") for t in ("sampling.temperature=0", "sampling.temperature=1")]),
    ),
    "switches": (["--cfg", "job", "draft=[a]"], (["--cfg", "job"], [["draft=a"]])),
    "not ours": (["gammas=[1,3]", "leniences=[0.5]"], (["gammas=[1,3]", "leniences=[0.5]"], [[]])),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_taken_apart(name: str) -> None:
    argv, expected = LISTS[name]
    assert split(argv, {}) == expected


def test_temperatures_have_a_default_and_an_empty_list_is_refused() -> None:
    assert split([], {"sampling.temperature": ["0", "1"]})[1] == [
        ["sampling.temperature=0"],
        ["sampling.temperature=1"],
    ]
    assert split(["sampling.temperature=1"], {"sampling.temperature": ["0"]})[1] == [[]]
    with pytest.raises(UserError, match="draft=\\[\\]: the list is empty"):
        split(["draft=[]"], {})


@pytest.fixture
def argv(folders: Folders, tmp_path: Path) -> list[str]:
    return [
        f"target.path={folders['t5']}", "task=ende", f"task.path={folders['rows']}",
        f"task.train_path={folders['rows']}", f"results={tmp_path}", f"draft.cache_dir={tmp_path / 'cache'}",
        "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=12", "resamples=100",
    ]  # fmt: skip


def test_alpha_of_three_drafts_at_two_temperatures(
    argv: list[str], folders: Folders, tmp_path: Path, capfd: Capture
) -> None:
    drafts = ["draft=[unigram,random]", f"draft.path={folders['t5-draft']}"]
    assert main(["alpha", *argv, *drafts]) == 0
    out = capfd.readouterr().out
    assert "t5-draft" in out and "α(l=0.5)" in out and "3 prompts are few" in out
    (file,) = (tmp_path / "alpha").glob("*.json")
    rows = {(row["draft"], row["temperature"]): row for row in json.loads(file.read_text())["rows"]}
    assert set(rows) == {(d, t) for d in ("unigram", "random", "t5-draft") for t in (0, 1)}
    assert rows["random", 0]["alpha"] == pytest.approx(1 / 43)  # tokens of the vocabulary
    for row in rows.values():
        assert 0 <= row["alpha_low"] <= row["alpha"] <= row["alpha_high"] <= 1
        values = [row["lenient"][one]["value"] for one in ("1", "0.5", "0.3", "0.1")]
        assert values[0] == pytest.approx(row["alpha"]) and values == sorted(values)
    samples = {file: file.read_text() for file in (tmp_path / "samples").glob("*.json")}
    assert len(samples) == 2

    # The sample is taken up by a later call, and the estimate is the one that decoding gives, to the last digit.
    assert main(["alpha", *argv, "draft=bigram", "sampling.temperature=1"]) == 0
    assert "3 texts of it kept from before" in capfd.readouterr().out
    assert samples == {file: file.read_text() for file in (tmp_path / "samples").glob("*.json")}
    assert main(["run", *argv, drafts[1], "sampling.temperature=1", "gamma=2"]) == 0
    (run,) = store.summaries(tmp_path)
    assert run["alpha"] == pytest.approx(rows["t5-draft", 1]["alpha"], abs=1e-6)
    assert run["alpha_low"] == pytest.approx(rows["t5-draft", 1]["alpha_low"], abs=1e-6)


def test_a_damaged_sample_is_written_again_and_a_larger_one_takes_over(
    argv: list[str], tmp_path: Path, capfd: Capture
) -> None:
    call = ["alpha", *argv, "draft=random", "sampling.temperature=0"]
    assert main([*call, "tokens=1"]) == 0
    (sample,) = (tmp_path / "samples").glob("*.json")
    assert len(json.loads(sample.read_text())["texts"]) == 1
    assert main(call) == 0
    assert "1 texts of it kept" in capfd.readouterr().out
    whole = json.loads(sample.read_text())["texts"]
    assert len(whole) == 3
    sample.write_text(sample.read_text()[:40])
    assert main(call) == 0
    again = json.loads(sample.read_text())["texts"]
    assert {key: text["tokens"] for key, text in again.items()} == {key: text["tokens"] for key, text in whole.items()}


WRONG = {
    "tokens=0": "tokens=0: must be at least 1",
    "leniences=[0]": "leniences=[0.0]: must be above 0 and at most 1",
    "draft=[unigram,nosuch]": "draft=nosuch: no such draft; choose from",
    "draft=[unigram,unigram]": "draft: two of the drafts are called unigram",
    "tokns=3": "tokns: no such key; did you mean tokens",
    "gammas=[0]": "gammas=[0]: must be a list of numbers from 1 to 64",
}


@pytest.mark.parametrize("override", WRONG)
def test_mistakes_are_one_line(override: str, argv: list[str], capfd: Capture) -> None:
    assert main(["alpha", *argv, *([] if override.startswith("draft") else ["draft=random"]), override]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"specbench: {WRONG[override]}") and err.count("\n") == 1
