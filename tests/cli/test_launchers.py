"""A sweep ends the same wherever it runs. Each launcher is skipped by name where it is not installed."""

import importlib.util
import subprocess
import time
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.records.catalog import Catalog
from tests.support import sweeps

# Two at a time: more would only wait for each other on a small machine.
MODULES = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "ray": "hydra_plugins.hydra_ray_launcher",
}
KEYS = {
    "joblib": ["hydra.launcher.n_jobs=2"],
    "submitit_local": ["hydra.sweeper.max_batch_size=2"],
    "ray": ["+hydra.launcher.ray.init.num_cpus=2"],
}


def need(launcher: str) -> None:
    try:
        installed = importlib.util.find_spec(MODULES[launcher]) is not None
    except ModuleNotFoundError:
        installed = False
    if not installed:
        pytest.skip(f"hydra/launcher={launcher} is not installed")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("launcher", MODULES)
def test_thirty_runs_end_as_those_that_ran_one_after_the_other(
    launcher: str, undisturbed: sweeps.Undisturbed, tmp_path: Path
) -> None:
    need(launcher)
    line = sweeps.command(tmp_path, undisturbed.cache, f"hydra/launcher={launcher}", *KEYS[launcher])
    began = time.monotonic()
    done = subprocess.run(line, env=sweeps.ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{sweeps.RUNS} of {sweeps.RUNS} runs done" in done.stderr
    basic, here = sweeps.comparable(undisturbed.results), sweeps.comparable(tmp_path)
    equal = sum(basic[run] == here.get(run) for run in basic)
    print(f"\n{launcher}: {len(here)} runs in {time.monotonic() - began:.0f} s, {equal} equal to the basic launcher's")
    assert len(basic) == sweeps.RUNS
    assert basic == here


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", *MODULES])
def test_every_launcher_does_all_jobs_and_tells_of_the_failed_one(
    launcher: str, folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if launcher != "basic":
        need(launcher)
    argv = [
        "sweep", f"hydra/launcher={launcher}", f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}",
        "task=ende", f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "threads=1",
        "device=cpu,cuda:9", "max_new_tokens=8", "gamma=1,3",
    ]  # fmt: skip
    assert main(argv) == 2
    err = capfd.readouterr().err
    assert "2 of 4 runs done" in err and "failed: device=cuda:9: this machine has " in err
    rows = sorted(Catalog(tmp_path).rows(), key=lambda row: row["gamma"])
    assert [row["gamma"] for row in rows] == [1, 3]
    assert all(row["identical"] == 1.0 for row in rows)
