"""A sweep loads each model once, frees it before it loads another, and measures what runs one by one measure."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import specbench.experiment.runner as runner
import specbench.loading.model_loader as model_loader
from specbench.cli import main
from specbench.compose.words import by_models
from specbench.config.model import name_of
from specbench.engine.eager.model import EagerModel
from specbench.experiment.run_parts import Parts
from specbench.records.catalog import Catalog
from tests.support import sweeps
from tests.support.networks import network

Folders = dict[str, Path]
GAMMAS, TEMPERATURES = "1,3", "0,1"


class Counted:
    """Stands in for `load_model`: notes what is loaded, and which networks are in memory at that moment."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.beside: list[set[str]] = []
        self._alive: list[tuple[str, weakref.ref[Any]]] = []

    def __call__(self, model: Any, key: str, *rest: Any) -> EagerModel:
        self.beside.append({name for name, network in self._alive if network() is not None})
        made = REAL(model, key, *rest)
        self.loaded.append(name_of(model))
        self._alive.append((name_of(model), weakref.ref(made.network)))
        return made


REAL = model_loader.load_model


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Without the garbage collector: what is freed is freed since nothing holds it, and no cycle does."""
    found = Counted()
    monkeypatch.setattr(model_loader, "load_model", found)
    gc.collect()
    gc.disable()
    monkeypatch.setattr(gc, "collect", lambda: 0)
    yield found
    monkeypatch.undo()
    gc.enable()


def command(folders: Folders, results: Path, verb: str, *keys: str) -> list[str]:
    common = (
        "task=ende", f"task.path={folders['rows']}", "limit=2", "dtype=float32", "device=cpu", "threads=1",
        "max_new_tokens=6", "warmup=1", f"results={results}",
    )  # fmt: skip
    return [verb, *common, *keys]


def pairs(folders: Folders) -> tuple[str, ...]:
    """Two targets with two drafts each, swept so that the lists as they stand would load 16 targets."""
    return (
        f"gamma={GAMMAS}", f"sampling.temperature={TEMPERATURES}", f"target.path={folders['t5']},{folders['gpt2']}",
        "draft=random,unigram", f"task.train_path={folders['rows']}", f"draft.cache_dir={folders['rows'].parent}",
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("engine", ["eager", "static"])
def test_jobs_over_one_target_load_it_once(folders: Folders, tmp_path: Path, counted: Counted, engine: str) -> None:
    drafts = f"{folders['t5-draft']},{folders['t5']}"
    keys = (f"gamma={GAMMAS}", f"sampling.temperature={TEMPERATURES}", f"draft.path={drafts}", f"engine={engine}")
    assert main(command(folders, tmp_path, "sweep", f"target.path={folders['t5']}", *keys)) == 0
    assert len(Catalog(tmp_path).rows()) == 8
    assert counted.loaded == ["t5", "t5-draft", "t5"]  # the target, and both drafts
    assert counted.beside == [set(), {"t5"}, {"t5"}]  # the first draft is gone before the second is loaded


@pytest.mark.full
@pytest.mark.parametrize("engine", ["eager", "static"])
def test_a_target_is_freed_before_another_is_loaded(
    folders: Folders, tmp_path: Path, counted: Counted, engine: str
) -> None:
    assert main(command(folders, tmp_path, "sweep", *pairs(folders), f"engine={engine}")) == 0
    assert len(Catalog(tmp_path).rows()) == 16
    assert counted.loaded == ["t5", "gpt2"] and counted.beside == [set(), set()]


@pytest.mark.full
def test_memory_and_time_are_said_before_the_first_job(
    folders: Folders, tmp_path: Path, counted: Counted, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = (f"target.path={folders['t5']}", "draft=random", "engine=eager")
    assert main(command(folders, tmp_path, "run", *keys, "gamma=1")) == 0
    capfd.readouterr()
    assert main(command(folders, tmp_path, "sweep", *keys, "gamma=1,2,3")) == 0
    first, *_ = capfd.readouterr().err.splitlines()
    assert first.startswith("3 jobs, 1 of them done; the largest needs ") and "B for its weights" in first
    assert "one after the other about " in first


@pytest.mark.full
def test_a_sweep_measures_what_runs_one_by_one_measure(folders: Folders, tmp_path: Path, counted: Counted) -> None:
    target, draft = f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}"
    swept, single = tmp_path / "swept", tmp_path / "single"
    lists = (f"gamma={GAMMAS}", f"sampling.temperature={TEMPERATURES}", "engine=static")
    assert main(command(folders, swept, "sweep", target, draft, *lists)) == 0
    assert counted.loaded == ["t5", "t5-draft"]
    for gamma in GAMMAS.split(","):
        for temperature in TEMPERATURES.split(","):
            keys = (f"gamma={gamma}", f"sampling.temperature={temperature}", "engine=static")
            assert main(command(folders, single, "run", target, draft, *keys)) == 0
    assert counted.loaded.count("t5") == 1 + 4  # runs of their own load their own
    assert sweeps.comparable(swept) == sweeps.comparable(single) and len(sweeps.comparable(swept)) == 4


@pytest.mark.full
def test_a_simulated_run_leaves_no_model_without_ends(folders: Folders, tmp_path: Path, counted: Counted) -> None:
    target, draft = f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}"
    lists = ("simulate.alpha=0.7,null", "gamma=3", "engine=eager")
    assert main(command(folders, tmp_path, "sweep", target, draft, *lists)) == 0
    assert main(command(folders, tmp_path / "alone", "run", target, draft, "gamma=3", "engine=eager")) == 0
    (alone,) = sweeps.comparable(tmp_path / "alone").items()
    assert alone in sweeps.comparable(tmp_path).items()


@pytest.mark.full
def test_ctrl_c_in_the_middle_loses_nothing(
    folders: Folders, tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = (
        f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}", f"gamma={GAMMAS}",
        f"sampling.temperature={TEMPERATURES}", "engine=eager",
    )  # fmt: skip
    real, measured = runner.measure_prompt, list[int]()

    def interrupted(parts: Parts, index: int) -> Any:
        if len(measured) == 3:  # the first job's two prompts, and one of the second's
            raise KeyboardInterrupt
        measured.append(1)
        return real(parts, index)

    monkeypatch.setattr(runner, "measure_prompt", interrupted)
    assert main(command(folders, tmp_path, "sweep", *keys)) == 130
    before = sweeps.finished_prompts(tmp_path)
    assert len(Catalog(tmp_path).rows()) == 1 and len(before) == 3
    monkeypatch.setattr(runner, "measure_prompt", real)
    assert main(command(folders, tmp_path, "sweep", *keys)) == 0
    after = sweeps.finished_prompts(tmp_path)
    assert len(Catalog(tmp_path).rows()) == 4 and before.items() <= after.items() and len(after) == 8
    assert counted.loaded == ["t5", "t5-draft"] * 2  # once by each of the two processes, so to speak


@pytest.mark.full
def test_a_job_that_fails_leaves_no_model_to_the_next(
    folders: Folders, tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runner.measure_prompt

    def failing(parts: Parts, index: int) -> Any:
        if parts.config.gamma == 1:
            raise RuntimeError("the device is gone")
        return real(parts, index)

    monkeypatch.setattr(runner, "measure_prompt", failing)
    keys = (f"target.path={folders['t5']}", "draft=random", "gamma=1,2,3", "engine=eager")
    assert main(command(folders, tmp_path, "sweep", *keys)) == 1
    assert [row["gamma"] for row in Catalog(tmp_path).rows()] == [2, 3]
    assert counted.loaded == ["t5", "t5"]


def test_a_model_on_a_gpu_is_freed_at_once_too(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    made = network("t5", seed=1)
    monkeypatch.setattr(type(made), "device", torch.device("cuda", 0))  # as far as its clock is concerned
    model = EagerModel(made, 60, frozenset())
    freed = weakref.ref(model)
    del model
    assert freed() is None


def test_jobs_of_the_same_models_stand_together_and_else_as_given() -> None:
    jobs = [
        ["task=ende", f"draft={draft}", f"gamma={gamma}", f"+target={target}"]
        for draft in ("t5-small", "unigram") for gamma in ("3", "1") for target in ("t5-xxl", "t5-3b")
    ]  # fmt: skip
    ordered = by_models(jobs)
    assert sorted(ordered) == sorted(jobs)
    assert [job[3] for job in ordered] == ["+target=t5-xxl"] * 4 + ["+target=t5-3b"] * 4
    assert [job[1:3] for job in ordered[:4]] == [
        ["draft=t5-small", "gamma=3"], ["draft=t5-small", "gamma=1"],
        ["draft=unigram", "gamma=3"], ["draft=unigram", "gamma=1"],
    ]  # fmt: skip
    parts = [["draft.path=A", "gamma=1"], ["draft.path=B", "gamma=1"], ["draft.path=A", "gamma=2"]]
    assert [job[0] for job in by_models(parts)] == ["draft.path=A", "draft.path=A", "draft.path=B"]


def test_a_line_that_all_jobs_have_is_told_once(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The dtype that `auto` chose stood twelve times in the log of twelve jobs."""
    chosen = SimpleNamespace(line="dtype=auto: float32, as a test says", dtype="float32")
    monkeypatch.setattr("specbench.experiment.run_parts.faster_dtype", lambda config: chosen)
    words = [word for word in command(folders, tmp_path, "sweep", f"gamma={GAMMAS}") if word != "dtype=float32"]
    assert main([*words, f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}"]) == 0
    err = capfd.readouterr().err
    assert err.count("dtype=auto: float32, as a test says") == 1 and "2 of 2" in err
