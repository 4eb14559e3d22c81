"""`alpha` and `recommend` keep what they have done: stopped anywhere, the same command resumes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specbench import border
from specbench.analysis.acceptance.agreement import Agreement
from specbench.choose import alpha as scoring
from specbench.choose import rank as ranking
from specbench.choose import timed_passes as passes
from specbench.cli import main
from specbench.recorded import from_json, to_json

pytestmark = pytest.mark.usefixtures("short_probes")


@pytest.fixture(autouse=True)
def shown_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "SHOWN_EVERY_S", 0.0)
    monkeypatch.setattr("specbench.report.console.SLOW_S", 0.0)


Capture = pytest.CaptureFixture[str]


@pytest.fixture
def argv(folders: dict[str, Path], tmp_path: Path) -> list[str]:
    return [
        f"target.path={folders['gpt2']}", "task=lm-mini", "limit=4", f"results={tmp_path / 'results'}", "tokens=48",
        f"draft.cache_dir={tmp_path / 'cache'}", f"draft.path=[{folders['gpt2-draft']}]", "draft=[random,lookup]",
        "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=12", "threads=1",
    ]  # fmt: skip


@contextmanager
def stopped_in_call(number: int, calls: list[int]) -> Iterator[None]:
    """Ctrl-C in the scoring of a completion, as often as `calls` are counted."""
    original: Callable[..., Any] = scoring.agreements

    def counting(*args: Any, **keys: Any) -> Any:
        calls.append(len(args[1]))
        if len(calls) == number:
            raise KeyboardInterrupt
        return original(*args, **keys)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "agreements", counting)
        yield


def alphas(results: Path) -> list[dict[str, Any]]:
    (file,) = (results / "alpha").glob("*.json")
    return [{**row, "created": None} for row in json.loads(file.read_text())["rows"]]


def test_alpha_resumes_at_the_completion_where_it_was_stopped(argv: list[str], tmp_path: Path, capfd: Capture) -> None:
    results = tmp_path / "results"
    with stopped_in_call(7, []):  # T=0 is done, and two completions of T=1
        assert main(["alpha", *argv]) == 130
    assert capfd.readouterr().err.splitlines()[-1] == "specbench: interrupted; finished work is kept"
    kept = sorted((results / "alpha" / "unfinished").iterdir())
    assert len(kept) == 6 and not list((results / "alpha").glob("*.json"))
    with open(kept[0], "ab") as torn:  # a kill in the middle of a line
        torn.write(b'{"index": 3, "agree')
    calls: list[int] = []
    with stopped_in_call(0, calls):
        assert main(["alpha", *argv]) == 0
    err = capfd.readouterr().err
    assert calls == [3, 3]
    assert "T=0: 4 of 4 completions were scored before" in err and "T=1: 2 of 4 completions were scored before" in err
    assert not (results / "alpha" / "unfinished").exists()
    resumed = alphas(results)
    again = [*argv, f"results={tmp_path / 'whole'}"]
    assert main(["alpha", *again]) == 0
    assert resumed == alphas(tmp_path / "whole")


def test_a_temperature_is_shown_when_it_is_done(argv: list[str], capfd: Capture) -> None:
    assert main(["alpha", *argv]) == 0
    err = capfd.readouterr().err
    lines = [line for line in err.splitlines() if line.startswith("T=0: α ")]
    assert len(lines) == 1 and all(name in lines[0] for name in ("random", "lookup", "gpt2-draft"))
    assert not any(line.startswith("T=1: α ") for line in err.splitlines())  # its table follows
    assert "4 of 4, α so far: " in err


def test_another_list_of_drafts_takes_up_what_is_kept(argv: list[str]) -> None:
    with stopped_in_call(3, []):
        assert main(["alpha", *argv, "sampling.temperature=0"]) == 130
    calls: list[int] = []
    with stopped_in_call(0, calls):
        assert main(["alpha", *argv, "draft=[random,bigram]", "sampling.temperature=0"]) == 0
    assert calls == [1, 1, 3, 3]  # bigram alone along the first two


def test_other_tokens_or_leniences_are_scored_anew(argv: list[str]) -> None:
    with stopped_in_call(3, []):
        assert main(["alpha", *argv, "sampling.temperature=0"]) == 130
    calls: list[int] = []
    with stopped_in_call(0, calls):
        assert main(["alpha", *argv, "leniences=[0.7]", "sampling.temperature=0"]) == 0
    assert calls == [3, 3, 3, 3]


def test_agreements_are_the_same_after_a_file(argv: list[str], tmp_path: Path) -> None:
    with stopped_in_call(6, []):
        assert main(["alpha", *argv]) == 130
    for file in (tmp_path / "results" / "alpha" / "unfinished").iterdir():
        for line in file.read_text().splitlines():
            row = json.loads(line)["agreement"]
            border.check(row, Agreement, finite=False)
            assert to_json(from_json(Agreement, row)) == row


@contextmanager
def stopped_after_rounds(number: int) -> Iterator[None]:
    original = passes.best_so_far
    told = []

    def stopping(*args: Any) -> str:
        told.append(original(*args))
        if len(told) == number:
            raise KeyboardInterrupt
        return told[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "best_so_far", stopping)
        yield


def test_recommend_shows_the_best_so_far_and_ctrl_c_keeps_it(argv: list[str], tmp_path: Path, capfd: Capture) -> None:
    call = ["recommend", *argv, "gammas=[1,2]", "rounds=3", "sampling.temperature=0"]
    with stopped_after_rounds(2):
        assert main([*call, "verify=1"]) == 130
    out, err = capfd.readouterr()
    assert "interrupted: ranked by 2 of 3 rounds" in out + err and "γ" in out
    assert err.splitlines()[-1].startswith("specbench: interrupted: the ranking is of the rounds before that")
    (file,) = (tmp_path / "results" / "recommend").glob("*.json")
    record = json.loads(file.read_text())
    assert record["interrupted"] is True and len(record["rounds"]) == 2 and not record["verified"]

    assert main(call) == 0  # and is not taken for a finished one
    out, err = capfd.readouterr()
    assert "best so far: " in err and "left" in err and "4 of 4 completions were scored before" in err
    record = json.loads(file.read_text())
    assert len(record["rounds"]) == 3 and not record["interrupted"]
    assert main(call) == 0
    assert "measured before with the same keys" in capfd.readouterr().err


def test_ctrl_c_before_two_rounds_leaves_no_ranking(argv: list[str], tmp_path: Path, capfd: Capture) -> None:
    with stopped_after_rounds(1):
        assert main(["recommend", *argv, "gammas=[1]", "rounds=3", "sampling.temperature=0"]) == 130
    assert capfd.readouterr().err.splitlines()[-1] == "specbench: interrupted; finished work is kept"
    assert not (tmp_path / "results" / "recommend").exists()


def test_ctrl_c_in_a_run_that_checks_the_ranking_keeps_the_ranking(
    argv: list[str], tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that had been timed was lost: neither a table nor a record."""
    call = ["recommend", *argv, "gammas=[1,2]", "rounds=2", "sampling.temperature=0", "verify=2"]
    whole, runs = ranking.execute, []

    def second_is_stopped(*given: Any) -> Any:
        runs.append(given)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return whole(*given)

    with monkeypatch.context() as patch:
        patch.setattr(ranking, "execute", second_is_stopped)
        assert main(call) == 130
    out, err = capfd.readouterr()
    assert "interrupted: 1 of 2 checks of the ranking done" in out and "measured by real runs" in out
    assert "the ranking is whole, but not checked by all runs; the same command measures again" in err.splitlines()[-1]
    (file,) = (tmp_path / "results" / "recommend").glob("*.json")
    record = json.loads(file.read_text())
    assert record["interrupted"] is True and len(record["rounds"]) == 2 and len(record["verified"]) == 1

    assert main(call) == 0  # and is not taken for a finished one
    record = json.loads(file.read_text())
    assert not record["interrupted"] and len(record["verified"]) == 2
