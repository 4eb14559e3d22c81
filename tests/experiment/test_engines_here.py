"""`specbench list engine`: what this machine gets, and why."""

import json

import pytest
import torch

from specbench import kernels
from specbench.cli import main
from specbench.experiment import threads
from specbench.experiment.runnable_engines import Fact, engines_here
from specbench.experiment.threads import Threads
from specbench.kernels import NotCompiled


def of(name: str) -> Fact:
    return next(fact for fact in engines_here() if fact.name == name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_compiler_static_is_taken_and_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "found", lambda: NotCompiled("there is no C compiler (cc, gcc or clang) on PATH"))
    assert of("native") == Fact("engine", "native", False, "there is no C compiler (cc, gcc or clang) on PATH")
    assert of("static").why.endswith("; engine=auto takes it") and of("cudagraph").runs is False


@pytest.mark.skipif(torch.cuda.is_available() or not kernels.is_available(), reason="a GPU, or no C compiler")
def test_the_list_says_which_engine_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "engine"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (taken,) = [line for line in lines if "engine=auto takes it" in line]
    assert taken.startswith("engine  native      yes  on the CPU: kernels compiled and checked here")
    assert main(["list", "engine", "--format", "json"]) == 0
    assert {row["what"] for row in json.loads(capsys.readouterr().out)} == {"system", "device", "engine", "threads"}


def test_threads_are_those_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert of("5") == Fact("threads", "5", True, "OMP_NUM_THREADS")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(threads, "_allowed", lambda: set(range(5)))
    monkeypatch.setattr(threads, "usable_threads", lambda: Threads(3, "a quota of 3 processors (cgroup)"))
    assert of("3") == Fact("threads", "3", True, "a quota of 3 processors (cgroup)")


def test_apples_gpu_is_named_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert of("mps") == Fact("device", "mps", True, "device=mps, by engine=eager")
