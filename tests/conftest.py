"""Fixtures shared by all tests: toy models with exact tables, tiny random networks, and where extra data lies."""

import dataclasses
import gc
import os
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support import sweeps
from tests.support.covering import mark_the_rest
from tests.support.longest import longest_first
from tests.support.paths import ROOT

# The same examples at every run: a test that passed does not fail tomorrow at random.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

# Idle threads must not spin against other processes of a small machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if sys.version_info < (3, 12):  # which collects a protocol's members at every isinstance(); later versions do once
    typing._get_protocol_attrs = cache(typing._get_protocol_attrs)  # type: ignore[attr-defined]

SHARED = Path(os.environ.get("SPECBENCH_SHARED", ROOT.parent / "shared"))


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_the_rest(items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        longest_first(items)


def pytest_collection_finish() -> None:
    """Set aside what has been imported: the garbage collector would look through all of it before every run that is
    timed, which takes longer than a small run."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def shared() -> Path:
    """A folder of real data and models that is not part of the project; tests that need it are skipped without."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the folder {SHARED.name} (SPECBENCH_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders with random weights: a target and a draft of each kind, and rows to decode."""
    from tests.support.networks import save

    root = tmp_path_factory.mktemp("folders")
    made = {}
    for kind in ("t5", "t5-v1_1", "gpt2", "llama"):
        made[kind] = save(root / kind, kind, seed=1)
        made[f"{kind}-draft"] = save(root / f"{kind}-draft", kind, seed=2, layers=1)
    rows = [f'{{"en": "the {a} {b} sees a {c}", "de": "der {d} hund sieht ein haus ."}}' for a, b, c, d in WORDS]
    made["rows"] = root / "rows.jsonl"
    made["rows"].write_text("\n".join(rows) + "\n")
    return made


@pytest.fixture
def run(folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run on small random networks; returns (exit code, stdout, stderr, the newest record or None)."""
    from tests.support.calls import called, small_run

    return lambda *words, **how: called(small_run(folders, tmp_path, *words, **how), tmp_path, capfd)


WORDS = [("old", "dog", "tree", "alte"), ("small", "cat", "house", "kleine"), ("red", "man", "dog", "rote")]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> sweeps.Undisturbed:
    import subprocess
    import time

    from specbench.config.paths import shipped

    if not shipped("models", "t5-nano", "model.safetensors").is_file():
        pytest.skip("needs the shipped models")
    results, cache = tmp_path_factory.mktemp("undisturbed"), tmp_path_factory.mktemp("cache")
    subprocess.run(sweeps.command(results.with_name("warm"), cache, "gamma=1", "limit=1"), env=sweeps.ENVIRONMENT)
    began, first = time.monotonic(), None
    process = subprocess.Popen(sweeps.command(results, cache), env=sweeps.ENVIRONMENT)
    while process.poll() is None:
        if first is None and sweeps.finished_prompts(results):
            first = time.monotonic() - began
        time.sleep(0.05)
    assert process.returncode == 0 and first is not None
    return sweeps.Undisturbed(results, cache, time.monotonic() - began, first)


@pytest.fixture(scope="session", autouse=True)
def captured_anew() -> Iterator[Any]:
    """What is tested is captured by the code that is tested. `test_capture_cache` puts the cache back, which is the
    fixture's value."""
    from specbench.engine.capture import saved_captures

    cached = saved_captures.cached_capture
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_captures, "cached_capture", lambda network, settings, make: saved_captures.Capture(*make()))
        yield cached


@pytest.fixture(scope="module")
def captured_once(captured_anew: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Capture each network once for all of a file's tests, in a cache that this file alone has. A capture takes longer
    than most tests' texts; each model still makes its own steps of it, and compares them with its network."""
    from specbench.engine.capture import saved_captures

    folder = tmp_path_factory.mktemp("captures")

    def once(network: Any, settings: object, make: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saved_captures, "own_cache", lambda: folder)
            patch.setattr(saved_captures, "MOST_FILES", 1000)
            found = captured_anew(network, settings, make)
        return dataclasses.replace(found, file=None)  # as one that is new

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_captures, "cached_capture", once)
        yield


@pytest.fixture(scope="module")
def short_probes() -> Iterator[None]:
    """Probe for gamma or a tree in two rounds over two texts, for a file's tests that do not judge the choice. A probe
    takes 8 rounds or more otherwise, on at least 8 texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbench.experiment.drafting_plan.ROUNDS", (2, 2))
        patch.setattr("specbench.experiment.drafting_plan.FEWEST_PROMPTS", 2)
        patch.setattr("specbench.experiment.drafting_plan.TOKENS", 1)
        yield


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share their machine with each other and with what else runs there: no record says that it was disturbed, or
    tables would be empty. `test_disturbance` puts the judgement back."""
    sweeps.quieten(monkeypatch)
