"""A sweep of 30 runs on the shipped models, killed 20 times at random moments, ends equal to an undisturbed one."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench import store
from specbench.config.paths import shipped

KILLS = 20
SWEEP = [
    "draft=t5-nano,unigram,bigram", "gamma=1,2,3,5,7", "sampling.temperature=0,1", "limit=4", "max_new_tokens=32",
    "threads=1", "device=cpu", "dtype=float32", "warmup=1", "resamples=200",
]  # fmt: skip


def command(results: Path, cache: Path) -> list[str]:
    return [sys.executable, "-m", "specbench", "sweep", *SWEEP, f"results={results}", f"draft.cache_dir={cache}"]


def comparable(results: Path) -> dict[str, object]:
    """Per run, all that is not a time."""
    found: dict[str, object] = {}
    for file in store.runs_folder(results).glob("*.json"):
        record = store.read(file)
        prompts = [
            (p["index"], p["baseline"]["tokens"], p["speculative"]["tokens"], p["beta"], p["baseline"]["text"])
            for p in record["prompts"]
        ]
        found[record["run_id"]] = (record["summary"]["alpha"], record["summary"]["quality_speculative"], prompts)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_thirty_runs_killed_twenty_times(tmp_path: Path) -> None:
    if not shipped("models", "t5-nano", "model.safetensors").is_file():
        pytest.skip("needs the shipped models")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": env}
    began = time.monotonic()
    assert subprocess.run(command(tmp_path / "whole", tmp_path / "cache"), **quiet).returncode == 0  # type: ignore[call-overload]
    whole = time.monotonic() - began
    chance = random.Random(7)
    killed_with: list[tuple[int, int]] = []
    for _ in range(KILLS):
        process = subprocess.Popen(command(tmp_path / "killed", tmp_path / "cache"), **quiet)  # type: ignore[call-overload]
        try:
            process.wait(4 + chance.random() * whole / 6)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        journals = list((tmp_path / "killed" / "journals").glob("*.jsonl"))
        done = len(list(store.runs_folder(tmp_path / "killed").glob("*.json")))
        killed_with.append((done, sum(journal.read_bytes().count(b'"prompt"') for journal in journals)))
    assert subprocess.run(command(tmp_path / "killed", tmp_path / "cache"), **quiet).returncode == 0  # type: ignore[call-overload]
    print(f"undisturbed {whole:.0f} s; records and journaled prompts after each kill: {killed_with}")
    first, second = comparable(tmp_path / "whole"), comparable(tmp_path / "killed")
    assert len(first) == 30
    assert first == second
    assert not list((tmp_path / "killed").rglob("*.part"))
    resumed = sum(1 for row in store.summaries(tmp_path / "killed") if row["processes"] > 1)
    assert resumed > 0 or all(prompts == 0 for _, prompts in killed_with)
