"""Nothing is lost: interrupted runs resume, and end like uninterrupted runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.errors import MachineError, UserError
from specbench.records import store
from specbench.records.catalog import Catalog
from specbench.records.journal import Journal
from specbench.records.prediction import DraftingPlan
from tests.support.calls import small_run
from tests.support.made_records import prompt as prompt_of

Folders = dict[str, Path]


def test_whole_lines_are_kept_and_a_cut_one_is_dropped(tmp_path: Path) -> None:
    with Journal(tmp_path, "run") as journal:
        journal.begin_part("now", DraftingPlan(3, 3), "abc")
        journal.add(prompt_of(0, beta=[0.1, 1 / 3]))
        journal.add(prompt_of(1, beta=[0.5]))
    file = journal.file
    file.write_bytes(file.read_bytes()[:-7])
    with Journal(tmp_path, "run") as again:
        assert again.prompts == {0: prompt_of(0, beta=[0.1, 1 / 3])}
        assert again.parts == [{"started": "now", "gamma": DraftingPlan(3, 3), "after_prompts": 0, "code": "abc"}]
        assert again.other_code("abc") == [] and again.other_code("def") == ["abc"]
        again.parts.append({"started": "earlier", "gamma": DraftingPlan(3, 3), "after_prompts": 0})
        assert again.other_code("abc") == ["an earlier version"]
        again.add(prompt_of(1, beta=[0.5]))
    with Journal(tmp_path, "run") as third:
        assert sorted(third.prompts) == [0, 1]
        third.remove()
    assert not list(file.parent.iterdir())


def test_two_processes_on_one_run(tmp_path: Path) -> None:
    with Journal(tmp_path, "run"):
        with pytest.raises(MachineError, match="run: another process works on this run"):
            Journal(tmp_path, "run").__enter__()
        with Journal(tmp_path, "another"):
            pass
    with Journal(tmp_path, "run"):
        pass


def test_a_process_may_wait_for_the_run_and_goes_on_where_the_other_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.records.journal.SECONDS_BETWEEN_LOOKS", 0)
    first, waited = Journal(tmp_path, "run").__enter__(), []

    def waiting() -> None:
        waited.append(True)
        first.add(prompt_of())
        first.__exit__(None, None, None)

    with Journal(tmp_path, "run", waiting) as second:
        assert second.prompts == {0: prompt_of()} and waited == [True]


@pytest.mark.full
def test_a_run_that_another_process_finishes_meanwhile_is_reused(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is missing when this process asks first; the other process holds the journal until its record is written."""
    argv = small_run(folders, tmp_path, "limit=1", "max_new_tokens=4")
    assert main(argv) == 0
    (file,) = store.runs_folder(tmp_path).glob("*.json")
    aside = file.rename(tmp_path / "aside")
    other = Journal(tmp_path, file.stem).__enter__()

    def finish(_: float) -> None:
        aside.rename(file)
        other.__exit__(None, None, None)

    monkeypatch.setattr("specbench.records.journal.time.sleep", finish)
    monkeypatch.setattr("specbench.experiment.runner.measure_prompt", None)  # decodes nothing
    capfd.readouterr()
    assert main(argv) == 0
    out, err = capfd.readouterr()
    assert "another process works on this run: waiting" in err and "already there" in out
    assert not list((tmp_path / "journals").iterdir())


def test_a_full_disk_keeps_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path, "run") as journal:
        journal.add(prompt_of(0))

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(MachineError, match="No space left on device.*finished work is kept"):
            journal.add(prompt_of(1))
        monkeypatch.undo()
    with Journal(tmp_path, "run") as again:
        assert 0 in again.prompts


def arguments(folders: Folders, results: Path, *more: str) -> list[str]:
    return [
        "run", f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}", "task=ende",
        f"task.path={folders['rows']}", f"results={results}", "dtype=float32", "device=cpu",
        "sampling.temperature=1", "max_new_tokens=20", "threads=1", "engine=eager", "warmup=1", *more,
    ]  # fmt: skip


def comparable(results: Path) -> list[object]:
    """All that must not depend on interruptions: texts, passes but for their times, betas, and what follows."""
    (file,) = store.runs_folder(results).glob("*.json")
    record = store.read(file)
    kept: list[object] = [
        record["summary"][key] for key in ("alpha", "alpha_low", "tokens_per_pass", "quality_baseline")
    ]
    for prompt in record["prompts"]:
        passes = [{k: v for k, v in vars(p).items() if not k.endswith("_s")} for p in prompt["speculative"].passes]
        kept.append([prompt["baseline"].tokens, prompt["speculative"].tokens, prompt["beta"], passes])
    return kept


def test_an_interrupted_run_ends_equal_to_an_undisturbed_one(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(folders, tmp_path / "whole")) == 0
    import specbench.experiment.runner as runner

    real, measured = runner.measure_prompt, []

    def interrupted(*given: object) -> object:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(1)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "measure_prompt", interrupted)
    assert main(arguments(folders, tmp_path / "cut")) == 130
    assert not store.runs_folder(tmp_path / "cut").exists()
    monkeypatch.setattr(runner, "measure_prompt", real)
    capfd.readouterr()
    assert main(arguments(folders, tmp_path / "cut")) == 0
    assert "resuming after 2 finished prompts" in capfd.readouterr().err
    assert comparable(tmp_path / "whole") == comparable(tmp_path / "cut")
    (row,) = Catalog(tmp_path / "cut").rows()
    assert row["processes"] == 2
    assert not list((tmp_path / "cut" / "journals").iterdir())


def test_a_run_that_other_code_began_says_so(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its record passed as one of the code that ended it."""
    import specbench.experiment.runner as runner

    real, measured = runner.measure_prompt, []

    def interrupted(*given: object) -> object:
        if measured:
            raise KeyboardInterrupt
        measured.append(1)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "measure_prompt", interrupted)
    monkeypatch.setattr(runner, "code", lambda: "a" * 40)
    assert main(arguments(folders, tmp_path)) == 130
    monkeypatch.setattr(runner, "measure_prompt", real)
    monkeypatch.setattr(runner, "code", lambda: "b" * 40)
    monkeypatch.setattr("specbench.environment.commit", lambda: "b" * 40)
    capfd.readouterr()
    assert main(arguments(folders, tmp_path)) == 0
    assert f"they are of other code ({'a' * 40}; now {'b' * 40})" in capfd.readouterr().err
    (record,) = (store.read(file) for file in store.runs_folder(tmp_path).iterdir())
    assert record["environment"]["commit"] == "b" * 40 + "+changes"
    assert [part["code"] for part in record["processes"]] == ["a" * 40, "b" * 40]


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments(folders: Folders, tmp_path: Path) -> None:
    """SIGKILL, again and again; each time the same command resumes."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(folders["rows"].read_text() * 10)
    more = (f"task.path={rows}",)
    assert main(arguments(folders, tmp_path / "whole", *more)) == 0
    command = [sys.executable, "-m", "specbench", *arguments(folders, tmp_path / "killed", *more)]
    journals = tmp_path / "killed" / "journals"
    lines_seen = set()
    for kill in range(8):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began, wanted = time.monotonic(), 2 + kill
        while process.poll() is None and time.monotonic() - began < 60:
            lines = sum(file.read_bytes().count(b"\n") for file in journals.glob("*.jsonl")) if journals.exists() else 0
            if lines >= wanted * 2:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.005)
        lines_seen.add(lines)
        process.wait()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert comparable(tmp_path / "whole") == comparable(tmp_path / "killed")
    assert len(lines_seen) > 3


@pytest.mark.full
def test_the_content_of_files_is_part_of_a_runs_identity(folders: Folders, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(folders["rows"].read_text())
    more = (f"task.path={rows}", "limit=1")
    assert main(arguments(folders, tmp_path / "r", *more)) == 0
    rows.write_text(json.dumps({"en": "the old cat", "de": "x"}) + "\n")
    assert main(arguments(folders, tmp_path / "r", *more)) == 0
    assert len(Catalog(tmp_path / "r").rows()) == 2


def test_a_link_in_the_place_of_a_journal_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("somebody's text")
    for name in ("run.jsonl", "more.lock"):
        (tmp_path / "journals").mkdir(exist_ok=True)
        (tmp_path / "journals" / name).symlink_to(other)
    with pytest.raises(UserError, match=r"run\.jsonl: is a link, which is not followed; remove it"):
        Journal(tmp_path, "run").__enter__()
    with pytest.raises(MachineError, match=r"more\.jsonl: cannot be written"):
        Journal(tmp_path, "more").__enter__()
    assert other.read_text() == "somebody's text"
    (tmp_path / "journals" / "run.jsonl").unlink()
    os.mkfifo(tmp_path / "journals" / "run.jsonl")
    with pytest.raises(UserError, match=r"run\.jsonl: is a pipe, not a regular file; remove it"):
        Journal(tmp_path, "run").__enter__()


def test_a_journal_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    with Journal(tmp_path, "run") as journal:
        journal.add(prompt_of())
    content = journal.file.read_bytes().replace(b'"schema_version": 2', b'"schema_version": 3')
    journal.file.write_bytes(content)
    with pytest.raises(UserError, match=r"run\.jsonl: a newer version began this run .schema version 3."):
        Journal(tmp_path, "run").__enter__()
    assert journal.file.read_bytes() == content


@pytest.mark.parametrize(
    "line",
    ['{"schema_version": 2}', "null", '{"schema_version": 2, "prompt": {"index": []}}', "[" * 100_000, "9" * 5000],
)
def test_a_damaged_line_is_named_and_decoded_again(line: str, tmp_path: Path) -> None:
    with Journal(tmp_path, "run") as journal:
        journal.add(prompt_of(0))
    with open(journal.file, "a") as opened:
        opened.write(line + "\n")
    with pytest.warns(UserWarning, match=r"run\.jsonl, line 2: is damaged .*decoded again"):
        again = Journal(tmp_path, "run").__enter__()
    assert list(again.prompts) == [0]
    again.add(prompt_of(1))
    again.__exit__(None, None, None)
    with Journal(tmp_path, "run") as third:
        assert sorted(third.prompts) == [0, 1]
