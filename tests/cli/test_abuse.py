"""What other tests leave of docs/errors.md: its rows are tested, and no finished work is lost."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specbench.experiment.runner as runner
from specbench.cli import main
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.schema import RunConfig
from specbench.records import store
from specbench.text.vocabulary import Vocabulary
from tests.support.calls import small
from tests.support.made_records import make
from tests.support.networks import tokenizer
from tests.support.paths import ROOT

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]
ERRORS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


@pytest.fixture
def argv(folders: Folders, tmp_path: Path) -> Callable[..., list[str]]:
    keys = small(folders, tmp_path, "draft=random", "threads=1", "max_new_tokens=4", "warmup=0")
    return lambda *more: ["run", *keys, *more]


def test_every_row_of_the_table_names_a_test_that_is_there() -> None:
    files = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    rows = [line for line in ERRORS.splitlines() if re.match(r"\| .* \| \d+ \|", line)]
    assert len(rows) > 20
    for row in rows:
        for name in row.split("|")[-2].split(","):
            assert name.strip() in files, row


def test_the_drafts_that_make_no_trees_are_named_as_the_message_names_them() -> None:
    said = re.findall(r"draft=([\w-]+):? (.*?makes no trees)", ERRORS)
    assert said
    for kind, message in said:
        assert DRAFT_KINDS[kind]().objection_to_tree() == message


def test_a_long_prompt_is_cut() -> None:
    long = " ".join(["the old dog sees a cat"] * 10)
    for with_end in (True, False):
        cut = Vocabulary(tokenizer(with_end), 0, is_encoder_decoder=with_end).prompt(long, "", 8)
        assert len(cut.source or cut.prefix) == 8


def test_nothing_is_said_to_be_kept_where_nothing_was(tmp_path: Path, capfd: Capture) -> None:
    """A results folder that cannot be made: no prompt was decoded, so that no work is finished."""
    (tmp_path / "file").write_text("")
    assert main(["run", "dtype=float32", "draft=unigram", "limit=1", f"results={tmp_path / 'file' / 'r'}"]) == 1
    err = capfd.readouterr().err.splitlines()[-1]
    assert "cannot be written" in err and err.endswith("; set results=FOLDER elsewhere") and "kept" not in err


@pytest.mark.full
def test_a_disk_that_fills_up_in_the_middle_loses_nothing(
    argv: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    real, writes = os.fsync, []

    def full(number: int) -> None:
        writes.append(number)
        if len(writes) > 2:  # the part line and one prompt
            raise OSError(28, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", full)
    assert main(argv()) == 1
    err = capfd.readouterr().err.splitlines()[-1]
    assert "cannot be written (No space left on device); finished work is kept: run the same command again" in err
    assert not store.runs_folder(tmp_path).exists() or not list(store.runs_folder(tmp_path).iterdir())
    monkeypatch.undo()
    assert main(argv()) == 0
    assert "resuming after" in capfd.readouterr().err


def test_a_read_only_results_folder(
    argv: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    real = Path.mkdir

    def refused(path: Path, *given: int, **keys: bool) -> None:
        if path.name in ("journals", "runs"):
            raise PermissionError(13, "Permission denied")
        real(path, *given, **keys)

    monkeypatch.setattr(Path, "mkdir", refused)
    assert main(argv()) == 1
    err = capfd.readouterr().err
    assert "cannot be written (Permission denied)" in err and "set results=FOLDER elsewhere" in err


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_while_loading(
    argv: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, capfd: Capture, error: Exception
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(runner, "build_each", no_memory)
    assert main(argv()) == 1
    assert "device=cpu: out of memory; lower gamma, max_new_tokens" in capfd.readouterr().err


def test_results_skip_a_damaged_record_by_name(tmp_path: Path) -> None:
    make(tmp_path, alpha=0.5)
    (tmp_path / "runs" / "bad.json").write_text("{")
    command = [sys.executable, "-m", "specbench", "results", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "t5-nano" in done.stdout
    assert done.stderr.splitlines() == [
        f"specbench: {tmp_path}/runs/bad.json: skipped, it is not a record (the file is cut short)"
    ]


@pytest.mark.parametrize(
    "kind", ["medusa", "hydra", "eagle", "eagle3", "mtp", "pard", "peagle", "blockwise", "pass", "specdec", "bigram"]
)
def test_an_empty_folder_is_no_draft(kind: str, tmp_path: Path, capfd: Capture) -> None:
    """Of the kinds whose weights others publish too, `transformers` is asked for files that are not there."""
    (tmp_path / "empty").mkdir()
    target = "t5-mini" if kind in ("blockwise", "specdec") else "gpt-mini"
    assert (
        main(["run", f"target={target}", f"draft={kind}", f"draft.path={tmp_path}/empty", f"results={tmp_path}"]) == 2
    )
    err = capfd.readouterr().err.splitlines()
    assert err[-1].startswith(f"specbench: draft.path={tmp_path}/empty: ") and "Traceback" not in "".join(err), err


KEYS = ("gamma", "sampling.temperature", "sampling.top_p", "limit", "dtype", "device", "draft", "task.metric", "seed")
VALUES = st.one_of(
    st.integers(-3, 100).map(str), st.floats(allow_nan=True).map(str), st.sampled_from(["null", "true", "", "auto"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), max_size=6),
)  # fmt: skip


@pytest.mark.full
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_any_value_of_any_key_is_taken_or_refused_in_one_line(
    key: str, value: str, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    taken: list[RunConfig] = []
    monkeypatch.setattr("specbench.experiment.runner.execute", lambda config, *_: taken.append(config))
    capfd.readouterr()
    code = main(["run", f"{key}={value}"])
    err = capfd.readouterr().err
    assert (code, bool(taken)) in ((0, True), (2, False)), err
    if code == 2:
        assert err.startswith("specbench: ") and err.count("\n") == 1, err
