"""The two servers of a target: found, started, side by side or in turn, and each mistake in one line."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.config.paths import shipped
from specbench.errors import MachineError, UserError
from specbench.interop.serving.settings.engines import Recommended, Weights
from specbench.interop.starting import servers as starting
from specbench.interop.starting.engines import STARTABLE, Call, Startable, Work, as_flags, settings_of
from specbench.interop.starting.servers import Asked, Servers, started
from tests.support.version_server import SERVER

TARGET, DRAFT = (Weights(str(shipped("models", name))) for name in ("gpt-mini", "gpt-nano"))


def call(program: str, work: Work, say: object) -> Call:
    drafting = ["--drafting"] if work.drafting is not None else []
    return Call([program, "-c", SERVER, str(work.port), *drafting])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Asked]:
    engine = Startable(
        "toy", "Toy", "SPECBENCH_TOY", "make it", lambda: sys.executable, call, ("/version", "version"), 1
    )
    monkeypatch.setitem(STARTABLE, "toy", engine)
    return Asked("toy", TARGET, candidate("model"), results=tmp_path)


def candidate(kind: str, temperature: float = 0.0) -> Recommended:
    return Recommended(TARGET, kind, DRAFT if kind == "model" else None, {"match": 2}, 3, "exact", temperature)


def test_both_are_started_once_and_stopped(asked: Asked) -> None:
    said: list[str] = []
    with started(asked, said.append) as both:
        assert both.side_by_side()
        plain, drafting = both.plain(), both.drafting()
        assert plain.url != drafting.url and both.plain() is plain
        assert plain.engine == "Toy 1.2" and drafting.flags.endswith("--drafting")
        assert plain.log.parent == asked.results / "engines" and plain.log != drafting.log
    assert len(said) == 2 and str(plain.log) in said[0]
    for one in (plain, drafting):
        with pytest.raises(MachineError):
            one.process.require_running()


def test_one_is_stopped_where_memory_holds_one(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "available_memory", lambda: starting.SPARE + 2.0**20)
    with started(asked, lambda line: None) as both:
        drafting = both.drafting()
        assert not both.side_by_side()
        both.plain()
        with pytest.raises(MachineError):
            drafting.process.require_running()


def test_an_engine_that_is_not_known_or_not_installed_is_told(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="start=triton: must be of vllm, llama.cpp, openvino"):
        Servers(replace(asked, engine="triton"), print)
    monkeypatch.setitem(STARTABLE, "toy", replace(STARTABLE["toy"], find=lambda: None))
    with pytest.raises(
        UserError, match=r"start=toy: Toy is not found; install it \(make it\), or name .* SPECBENCH_TOY"
    ):
        Servers(asked, print)
    monkeypatch.setenv("SPECBENCH_TOY", "/no/such/program")
    with pytest.raises(UserError, match="SPECBENCH_TOY=/no/such/program: is no program"):
        Servers(asked, print)


def test_weights_that_are_nowhere_are_told(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.interop.starting.engines import gguf_of

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="no/such: is no folder, and not to be had from the hub"):
        gguf_of(Weights("no/such"), "float32", print)
    with pytest.raises(UserError, match="start=llama.cpp: cannot convert .*gpt-mini to GGUF: model_type=gpt2"):
        gguf_of(TARGET, "float32", print)


@pytest.mark.parametrize("kind", ["model", "lookup"])
@pytest.mark.parametrize("engine", STARTABLE)
def test_each_has_the_settings_that_are_printed_for_it(engine: str, kind: str) -> None:
    settings = settings_of(engine, candidate(kind, 1.0))
    assert settings and settings_of(engine, None) == {}
    words = as_flags(settings)
    assert len(words) == 2 * len(settings) and all(isinstance(word, str) for word in words)
    with pytest.raises(UserError, match=f"start={engine}: .* has no accept=lenient"):
        settings_of(engine, replace(candidate(kind), rule="lenient"))


def test_a_conversion_that_breaks_off_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specbench.interop.starting import engines

    monkeypatch.setattr(engines, "own_cache", lambda: tmp_path / "cache")
    tool = tmp_path / "optimum-cli"
    monkeypatch.setenv("SPECBENCH_OPTIMUM", str(tool))
    half = '#!/bin/sh\nfor last; do :; done\ntouch "$last/openvino_tokenizer.xml"\n'
    tool.write_text(half + "echo no room >&2\nexit 1\n")
    tool.chmod(0o755)
    with pytest.raises(UserError, match="cannot convert .*gpt-mini: no room"):
        engines.ir_of(TARGET, "fp32", sys.executable, print)
    assert not list((tmp_path / "cache" / "engines").iterdir())
    tool.write_text(half)
    made = Path(engines.ir_of(TARGET, "fp32", sys.executable, print))
    assert [one.name for one in made.parent.iterdir()] == [made.name] and (made / "openvino_tokenizer.xml").exists()
