"""The sweep of 30 runs on the shipped models that is killed, and that every launcher runs; runs as short as can be.

SPECBENCH_SWEEP_RUNS makes it smaller, to try a test out: 3 (one gamma, T=1), 6 (both temperatures), 12, ... 30.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.costs.disturbance import Disturbance
from specbench.recorded import to_json
from specbench.records import store

RUNS = int(os.environ.get("SPECBENCH_SWEEP_RUNS", "30"))
DRAFTS, TEMPERATURES, GAMMAS = ("t5-nano", "unigram", "bigram"), (1, 0), (3, 1, 7, 2, 5)
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Undisturbed:
    """The sweep of `sweeps.py` as the basic launcher ran it, and its seconds, in all and to the first prompt."""

    results: Path
    cache: Path
    seconds: float
    first: float


def keys() -> list[str]:
    """The sweep's keys; no more is swept than makes RUNS."""
    cells = max(1, RUNS // len(DRAFTS))
    temperatures = TEMPERATURES[:cells]
    gammas = GAMMAS[: max(1, cells // len(temperatures))]
    return [
        f"draft={_listed(DRAFTS)}", f"gamma={_listed(gammas)}", f"sampling.temperature={_listed(temperatures)}",
        "limit=2", "max_new_tokens=16", "threads=1", "device=cpu", "dtype=float32", "warmup=0",
    ]  # fmt: skip


def command(results: Path, cache: Path, *more: str) -> list[str]:
    """The command line; `cache` holds the n-gram counts, and is part of what names a run."""
    where = [f"results={results}", f"draft.cache_dir={cache}"]
    return [sys.executable, "-m", "specbench", "sweep", *keys(), *where, *more]


def comparable(results: Path) -> dict[str, Any]:
    """Of each run, all that is not a time: alpha, quality, and per prompt texts, tokens, betas and passes."""
    found = {}
    for record in records(results):
        summary = record["summary"]
        numbers = [summary[key] for key in ("alpha", "alpha_low", "tokens_per_pass", "quality_speculative")]
        found[record["run_id"]] = [*numbers, *(_without_times(prompt) for prompt in record["prompts"])]
    return found


def records(results: Path) -> list[dict[str, Any]]:
    return [to_json(store.read(file)) for file in store.runs_folder(results).glob("*.json")]


def finished_prompts(results: Path) -> dict[tuple[str, int], str]:
    """Every prompt that is on the disk, in a record or in a journal, with its times: decoded anew, it would differ."""
    found = {(r["run_id"], p["index"]): json.dumps(p, sort_keys=True) for r in records(results) for p in r["prompts"]}
    for journal in (results / "journals").glob("*.jsonl"):
        for line in journal.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and "prompt" in (entry := json.loads(line)):
                prompt = entry["prompt"]
                found[journal.stem, prompt["index"]] = json.dumps(prompt, sort_keys=True)
    return found


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        # `load` holds times too, and is null where a prompt took less than the system counts; `used` is the process's,
        # `states` are the machine's.
        others = ("load", "used", "states")
        kept = {key: item for key, item in value.items() if not key.endswith("_s") and key not in others}
        return {key: _without_times(item) for key, item in kept.items()}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _listed(values: tuple[object, ...]) -> str:
    return ",".join(map(str, values))


def quieten(patch: pytest.MonkeyPatch) -> None:
    """Let no record say that it was disturbed: fixtures that run before `quiet_machine` call it themselves."""
    patch.setattr("specbench.analysis.summary.disturbance", lambda prompts, summary: Disturbance(None, None))
    patch.setattr("specbench.analysis.costs.core_time.of_steps", lambda waited, steps_s: Disturbance(waited, None))
    patch.setattr("specbench.analysis.costs.core_time.between", lambda before, after: None)
