"""A sweep of 30 runs on the shipped models, killed 20 times at random moments, equals an undisturbed sweep."""

import random
import signal
import subprocess
from pathlib import Path

import pytest

from specbench.records.catalog import Catalog
from tests.support import sweeps

KILLS = 2 * sweeps.RUNS // 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thirty_runs_killed_twenty_times(undisturbed: sweeps.Undisturbed, tmp_path: Path) -> None:
    line = sweeps.command(tmp_path, undisturbed.cache)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": sweeps.ENVIRONMENT}
    # From shortly before the first prompt is done to some runs later, so that the whole outlasts the kills.
    work = (undisturbed.seconds - undisturbed.first) / KILLS
    chance = random.Random(7)
    moments = [chance.uniform(0.7 * undisturbed.first, undisturbed.first + work) for _ in range(KILLS)]
    seen: dict[tuple[str, int], str] = {}
    steps = []
    for kill, moment in enumerate(moments):
        process = subprocess.Popen(line, **quiet)  # type: ignore[call-overload]
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, f"ended by itself before kill {kill + 1}"
        now = sweeps.finished_prompts(tmp_path)
        assert seen.keys() <= now.keys()
        seen |= now
        steps.append(len(seen))
    assert subprocess.run(line, **quiet).returncode == 0  # type: ignore[call-overload]

    end = sweeps.finished_prompts(tmp_path)
    again = sum(end[prompt] != text for prompt, text in seen.items())
    whole, killed = sweeps.comparable(undisturbed.results), sweeps.comparable(tmp_path)
    equal = sum(whole[run] == killed.get(run) for run in whole)
    resumed = sum(row["processes"] > 1 for row in Catalog(tmp_path).rows())
    print(
        f"\n{len(whole)} runs of {len(end) // len(whole)} prompts, {undisturbed.seconds:.0f} s undisturbed, the first "
        f"prompt after {undisturbed.first:.0f} s; {KILLS} kills with SIGKILL, {moments[0]:.1f}, {moments[1]:.1f} ... s "
        f"after the start; finished prompts after each: {steps}; finished prompts run again: {again} of {len(seen)}; "
        f"runs that several processes worked on: {resumed}; runs equal bit for bit: {equal} of {len(whole)}"
    )
    assert len(whole) == len(killed) == sweeps.RUNS
    assert equal == len(whole)
    assert again == 0
    assert steps[-1] > 0
    assert not list((tmp_path / "journals").iterdir())
