"""A sweep ends the same wherever it runs. Each launcher is skipped by name where it is not installed."""

import importlib.util
import json
from pathlib import Path

import pytest

from specbench import store
from specbench.cli import main

LAUNCHERS = {
    "basic": "hydra",
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "ray": "hydra_plugins.hydra_ray_launcher",
}


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_does_all_jobs_and_tells_of_the_failed_one(
    launcher: str, folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not installed(LAUNCHERS[launcher]):
        pytest.skip(f"hydra/launcher={launcher} is not installed")
    argv = [
        "sweep", f"hydra/launcher={launcher}", f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}",
        "task=ende", f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "device=cpu", "threads=1",
        "max_new_tokens=8", "resamples=100", "gamma=1,99,3",
    ]  # fmt: skip
    assert main(argv) == 2
    err = capfd.readouterr().err
    assert "2 of 3 runs done" in err and "failed: gamma=99: must be from 1 to 64" in err
    rows = sorted(store.summaries(tmp_path), key=lambda row: row["gamma"])
    assert [row["gamma"] for row in rows] == [1, 3]
    assert all(row["identical"] == 1.0 for row in rows)


def test_ten_thousand_records_are_read_quickly(tmp_path: Path) -> None:
    import time

    folder = store.runs_folder(tmp_path)
    folder.mkdir(parents=True)
    line = json.dumps({"schema": 1, "run_id": "x", "summary": {"alpha": 0.5, "draft": "d"}})[:-1]
    text = f"{line},\n" + '"prompts": [],\n' + '"complete": true\n}\n'
    for number in range(10_000):
        (folder / f"{number}.json").write_text(text)
    began = time.perf_counter()
    assert len(store.summaries(tmp_path)) == 10_000
    assert time.perf_counter() - began < 5
