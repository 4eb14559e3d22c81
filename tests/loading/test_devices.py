"""Targets over several devices: two processes on CPU give one process's texts; loaders' maps are passed on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.records import store
from tests.support.calls import small

Folders = dict[str, Path]


def argv(folders: Folders, results: Path, *more: str) -> list[str]:
    own = (f"draft.path={folders['llama-draft']}", "threads=1")
    return ["run", *small(folders, results, *own, *more, kind="llama")]


def texts(results: Path) -> list[list[int]]:
    (file,) = store.runs_folder(results).glob("*.json")
    return [prompt[way].tokens for prompt in store.read(file)["prompts"] for way in ("baseline", "speculative")]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1])
def test_two_ranks_write_what_one_process_writes(folders: Folders, tmp_path: Path, temperature: int) -> None:
    more = (f"sampling.temperature={temperature}",)
    assert main(argv(folders, tmp_path / "one", *more)) == 0
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "specbench",
        *argv(folders, tmp_path / "two", "target.tp_plan=auto", *more),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("record:") == 1  # one rank speaks
    assert texts(tmp_path / "one") == texts(tmp_path / "two")
    again = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert again.returncode == 0, again.stderr
    assert "already there" in again.stdout


@pytest.mark.full
def test_a_device_map_is_the_loaders_to_follow(folders: Folders, tmp_path: Path) -> None:
    assert main(argv(folders, tmp_path / "plain")) == 0
    assert main(argv(folders, tmp_path / "mapped", "target.device_map=auto")) == 0
    assert texts(tmp_path / "plain") == texts(tmp_path / "mapped")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["target.tp_plan=auto"], "target.tp_plan=auto: needs several processes: torchrun"),
        (["target.tp_plan=colwise"], "target.tp_plan=colwise: must be auto"),
        (["target.device_map=everywhere"], "target.device_map=everywhere: must be auto | balanced | sequential"),
        (["target.device_map=auto", "target.tp_plan=auto"], "not together with target.tp_plan"),
        (["draft.device_map=auto"], "a draft lives on one device"),
        (["target.device_map=auto", "engine=static"], "engine=static: target.device_map needs engine=eager"),
    ],
)
def test_what_does_not_fit(
    folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main([*argv(folders, tmp_path), *more]) == 2
    assert said in capfd.readouterr().err


def test_processes_without_a_plan(
    folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(argv(folders, tmp_path)) == 2
    assert "2 processes of torchrun and no target.tp_plan" in capfd.readouterr().err
