"""`recommend --for ENGINE verify=N`: which engines are measured, and what a failure of one leaves."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specbench.cli import recommend
from specbench.cli.other_engines import engines_to_check_in, in_engines
from specbench.config.verbs import ChooseConfig
from specbench.errors import MachineError
from specbench.interop.starting import measure_started as starting
from specbench.interop.starting.measure_started import Checked
from specbench.interop.starting.startable import STARTABLE

Capture = pytest.CaptureFixture[str]
SUMMARY = {
    "engine": "Toy 1.2", "speedup_measured": 1.2, "speedup_low": 1.1, "speedup_high": 1.3, "tokens_per_pass": 1.5,
    "verdict": "the target's",
}  # fmt: skip


def checked(engine: str) -> Checked:
    record = {"summary": {**SUMMARY, "engine": engine}, "run_id": f"served-{engine}"}
    return Checked("lookup", 3, 1, 1.5, cast(Any, SimpleNamespace(record=record)))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All engines that are started are installed but OpenVINO."""
    for name, engine in STARTABLE.items():
        there = None if name == "openvino" else sys.executable
        monkeypatch.delenv(engine.variable, raising=False)
        monkeypatch.setitem(STARTABLE, name, replace(engine, find=lambda there=there: there))


@pytest.mark.parametrize(
    ("names", "found", "said"),
    [
        ("vllm", ["vllm"], []),
        ("vllm,llama.cpp", ["vllm", "llama.cpp"], []),
        ("sglang,vllm", ["vllm"], ["SGLang is not started here"]),
        ("openvino", [], ["OpenVINO GenAI is not installed here", "our own loop is measured instead"]),
        ("sglang", [], ["SGLang is not started here", "our own loop is measured instead"]),
    ],
)
def test_each_engine_that_is_named_is_measured_or_told(
    names: str, found: list[str], said: list[str], installed: None, capsys: Capture
) -> None:
    assert engines_to_check_in({"for": names}, 2) == found
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said) and all(one in line for one, line in zip(said, lines, strict=True))
    assert engines_to_check_in({"for": names}, 0) == [] == engines_to_check_in({}, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "kinds", "only"),
    [
        ("transformers", {"model"}, "draft=lookup only"),
        ("llama-cpp-python", {"model", "bigram"}, "draft=lookup only"),
        ("llama.cpp", {"eagle"}, "draft=model or draft=lookup only"),
        ("transformers", {"model", "lookup"}, None),
        ("vllm", {"eagle3"}, None),
    ],
)
def test_an_engine_that_drafts_with_none_of_the_ranked_is_told(
    name: str, kinds: set[str], only: str | None, installed: None, capsys: Capture
) -> None:
    assert engines_to_check_in({"for": name}, 3, kinds=kinds) == ([name] if only is None else [])
    said = capsys.readouterr().err
    assert said == "" if only is None else f"is started here with {only}; it is not measured\n" in said
    assert ("our own loop is measured instead" in said) == (only is not None)


def test_an_engine_in_which_no_candidate_can_be_set_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def check(engine: str, *given: object) -> Iterator[Checked]:
        if engine == "vllm":
            yield checked(engine)

    monkeypatch.setattr(starting, "check_in_engine", check)
    in_engines(["vllm", "transformers"], {}, [ChooseConfig(verify=2)])
    said = capsys.readouterr().err
    assert "transformers: none of the ranked candidates can be set there; none is measured\n" in said
    assert "vllm: none" not in said


def test_assisted_generation_that_is_timed_needs_no_line(capsys: Capture) -> None:
    assert engines_to_check_in({"for": "transformers"}, 2, "transformers") == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("failure", [MachineError("vllm: ended with exit code 1"), KeyboardInterrupt()])
def test_an_engine_that_fails_loses_neither_the_others_nor_the_ranking(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def check(engine: str, *given: object) -> Iterator[Checked]:
        yield checked(engine)
        if engine == "vllm":
            raise failure

    monkeypatch.setattr(starting, "check_in_engine", check)
    rows, failed = in_engines(["vllm", "llama.cpp"], {}, [ChooseConfig(verify=2)])
    assert failed is failure
    others = [] if isinstance(failure, KeyboardInterrupt) else ["llama.cpp"]
    assert [row["engine"] for row in rows] == ["vllm", *others]
    document = {"target": "t", "task": "k", "temperature": 0.0, "rows": [], "reasons": [], "verified": []}
    monkeypatch.setattr(recommend.api, "rank", lambda *given, **more: SimpleNamespace(record=document, file="FILE"))
    monkeypatch.setattr(recommend, "settings_of_engines", lambda *given: [])
    monkeypatch.setattr(recommend, "engines_to_check_in", lambda *given: ["vllm"])
    monkeypatch.setattr(recommend, "draw", lambda record: print("THE RANKING"))
    with pytest.raises(type(failure)):
        recommend.job("table", {"for": "vllm"}, None, None, [ChooseConfig(verify=2)])
    out = capsys.readouterr().out
    assert "THE RANKING" in out and "measured 1.20" in out


def test_of_engines_that_fail_each_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def check(engine: str, *given: object) -> Iterator[Checked]:
        raise MachineError(f"{engine}: not ready")
        yield

    monkeypatch.setattr(starting, "check_in_engine", check)
    rows, failed = in_engines(["vllm", "llama.cpp"], {}, [ChooseConfig(verify=2)])
    assert rows == [] and str(failed) == "llama.cpp: not ready"
    assert "specbench: vllm: not ready" in capsys.readouterr().err
