"""What is measured in engines that are started here: the configs, the settings, and the ids of records."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from specbench.cli.other_engines import print_checked
from specbench.config.model import ModelConfig
from specbench.config.server import BY_TEXT, STARTED, ServerConfig
from specbench.config.verbs import ChooseConfig
from specbench.interop.server.measure_server import run_id_of
from specbench.interop.server.two_clients import Servers as Measured
from specbench.interop.server.when_sent import Load
from specbench.interop.serving.settings.wanted import Weights
from specbench.interop.starting import measure_started as starting
from specbench.interop.starting.process import _answers
from specbench.interop.starting.startable import STARTABLE, Call, Startable, Work
from specbench.methods.lookup.config import LookupConfig
from specbench.methods.model.config import ModelDraftConfig
from tests.support.version_server import SERVER

TARGET = ModelConfig(name="gpt-mini", shipped="gpt-mini")


class Silent:
    """Progress that nobody sees."""

    def say(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def advance(self, done: int, total: int, now: str = "") -> None: ...


def started_call(program: str, work: Work, say: object) -> Call:
    return Call([program, "-c", SERVER, str(work.port), "--drafting" if work.drafting is not None else "--plain"])


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """An engine `llama.cpp` that answers and generates nothing; the configs that are measured at it."""
    engine = Startable(
        "llama.cpp", "Toy", "SPECBENCH_TOY", "make it", lambda: sys.executable, started_call, ("/version", "version"), 1
    )
    monkeypatch.setitem(STARTABLE, "llama.cpp", engine)
    asked: list[ServerConfig] = []

    def measure(config: ServerConfig, progress: object, done: Any, device: str, alone: Any = None) -> list[Any]:
        assert device and _answers(f"{config.url}/models")
        asked.append(config)
        assert config.plain is None or alone is not None, "of two servers one is held"
        done()
        assert not _answers(f"{config.url}/models"), "before the target is loaded for the verdict"
        return [None]

    monkeypatch.setattr(starting, "measure", measure)
    return asked


def id_of(config: ServerConfig) -> str:
    class Who:
        engine, model = "Toy 1.2", "target"

        def named(self) -> str:
            return self.engine

        identity = property(lambda self: self)

    return run_id_of(config, cast(Measured, Who()), Load())


def test_both_servers_are_measured_and_a_second_start_is_the_same_measurement(
    toy: list[ServerConfig], tmp_path: Path
) -> None:
    config = ServerConfig(start="llama.cpp", target=TARGET, draft=LookupConfig(), gamma=3, results=str(tmp_path))
    for _ in range(2):
        starting.measure_started(config, Silent())
    first, second = toy
    assert first.plain is not None and first.url != first.plain and first.url != second.url
    assert first.start is None and first.engine == "Toy 1.2" and first.dtype == "float32"
    assert first.flags is not None and first.flags.endswith("PORT --drafting")
    assert id_of(first) == id_of(second), "another port is no other measurement"


def test_servers_that_do_not_fit_beside_each_other_are_measured_alone(
    toy: list[ServerConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting.Servers, "side_by_side", lambda self: False)
    config = ServerConfig(start="llama.cpp", target=TARGET, draft=LookupConfig(), gamma=3, results=str(tmp_path))
    assert len(starting.measure_started(config, Silent())) == 2
    drafting, alone = toy
    assert drafting.plain is None and alone.plain is None and alone.label == "none" and alone.gamma is None
    assert alone.flags is not None and alone.flags.endswith("--plain")


@pytest.mark.parametrize("engine", STARTED)
def test_an_engine_that_reads_text_is_sent_text_and_asked_for_whole_answers(engine: str) -> None:
    told = starting.as_it_reads(ServerConfig(start=engine))
    assert (told.send, told.stream) == (("text", False) if engine in BY_TEXT else ("auto", True))


@pytest.mark.parametrize("engine", ["toy", *BY_TEXT])
def test_a_batch_is_measured_only_where_requests_are_answered_at_once(
    engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(starting, "settings_of", lambda *given: {})
    monkeypatch.setattr(starting, "measure_started", lambda config, progress: [None])
    rows = [{"draft": "lookup", "accept": "exact", "gamma": 3, "batch": batch} for batch in (4, 1)]
    config = ChooseConfig(target=TARGET, results=str(tmp_path))
    checked = starting.check_in_engine(engine, ranking(*rows), config, 2, Silent())
    assert [one.batch for one in checked] == ([1] if engine in BY_TEXT else [4, 1])


def ranking(*rows: dict[str, Any]) -> dict[str, Any]:
    """A ranking of a draft model under two rules, and of a lookup."""
    drafts = [ModelDraftConfig(name="gpt-nano", shipped="gpt-nano"), LookupConfig(match=2)]
    configs = [asdict(ChooseConfig(target=TARGET, draft=draft)) for draft in (drafts[0], *drafts)]
    names = [("gpt-nano", "block"), ("gpt-nano", "exact"), ("lookup", "exact")]
    return {
        "configs": configs, "alpha_rows": [{"draft": draft, "accept": accept} for draft, accept in names],
        "rows": [{"candidate": row["draft"], "estimated": {"value": 1.5}, **row} for row in rows],
    }  # fmt: skip


def test_the_best_candidates_are_measured_as_they_were_ranked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[ServerConfig] = []
    monkeypatch.setattr(starting, "measure_started", lambda config, progress: asked.append(config) or [None])
    document = ranking(
        {"draft": "gpt-nano", "accept": "block", "gamma": 5},
        {"draft": "gpt-nano", "accept": "exact", "gamma": 4, "tree": "sequoia"},
        {"draft": "lookup", "accept": "exact", "gamma": 3, "batch": 4},
        {"draft": "gpt-nano", "accept": "exact", "gamma": 2},
    )
    # One config of several: memory= may have left out others.
    config = ChooseConfig(target=TARGET, results=str(tmp_path), max_new_tokens=64)
    checked = list(starting.check_in_engine("vllm", document, config, 5, Silent()))
    assert [(one.candidate, one.gamma, one.batch) for one in checked] == [("lookup", 3, 4), ("gpt-nano", 2, 1)]
    assert [one.batch for one in asked] == [[4], [1]] and asked[0].max_new_tokens == 64
    assert asked[0].draft == LookupConfig(match=2) and asked[1].draft.label() == "gpt-nano"
    wanted = starting.asked_of(asked[1])
    assert wanted.drafting is not None and wanted.drafting.draft is not None
    assert Path(wanted.drafting.draft.place).name == "gpt-nano" and wanted.sequences == 1


def test_weights_that_are_stored_in_another_dtype_are_told(
    toy: list[ServerConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    class Noted(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    monkeypatch.setitem(STARTABLE, "openvino", replace(STARTABLE["llama.cpp"], stores=STARTABLE["openvino"].stores))
    config = ServerConfig(start="openvino", target=TARGET, draft=LookupConfig(), gamma=3, results=str(tmp_path))
    for dtype in ("float32", "bfloat16"):
        starting.measure_started(replace(config, dtype=dtype), Noted())
    (note,) = notes
    assert "dtype=bfloat16: its files hold weights in float16" in note


@pytest.mark.parametrize(("name", "value"), [("gguf", "a.gguf"), ("base", "a/b"), ("weights", "random")])
def test_a_target_that_is_no_whole_checkpoint_is_told(name: str, value: str) -> None:
    from specbench.config.server import check_server
    from specbench.errors import UserError

    target = replace(TARGET, **{name: value})  # type: ignore[arg-type]
    config = ServerConfig(start="vllm", target=target, draft=LookupConfig(), gamma=3)
    with pytest.raises(UserError, match=f"target.{name}={value}: start=vllm serves a whole checkpoint as it is"):
        check_server(config)


def test_engines_take_the_gpu_that_a_run_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for present in (True, False):
        monkeypatch.setattr(starting.torch.cuda, "is_available", lambda present=present: present)
        assert starting.gpu_of("auto") == ("cuda" if present else "cpu")
    assert starting.gpu_of("cuda:1") == "cuda:1" and starting.gpu_of("mps") == starting.gpu_of("cpu") == "cpu"


def test_threads_and_positions_are_those_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specbench.experiment.threads import Threads

    monkeypatch.setattr(starting, "usable_threads", lambda: Threads(3, "a quota"))
    config = ServerConfig(start="vllm", target=TARGET, draft=LookupConfig(), gamma=3)
    assert starting.asked_of(config).threads == 3
    (tmp_path / "config.json").write_text('{"n_positions": 1024}')
    assert starting.longest(Weights(str(tmp_path))) == 1024
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 131072}')
    assert starting.longest(Weights(str(tmp_path))) == starting.LONGEST
    (tmp_path / "config.json").write_text("no JSON")
    assert starting.longest(Weights(str(tmp_path))) == starting.LONGEST


def test_a_speedup_of_one_prompt_has_no_interval(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "engine": "vLLM 0.32", "candidate": "lookup", "gamma": 3, "batch": 4, "estimated": 1.5, "measured": 1.2,
        "measured_low": None, "measured_high": None, "off": 0.25, "verdict": "the target's",
    }  # fmt: skip
    print_checked([row, row | {"measured": None, "off": None, "batch": 1}])
    first, second = capsys.readouterr().out.splitlines()
    assert "lookup with γ=3 at batch=4: calibrated for our loop 1.50×, measured 1.20×, prediction error +25%" in first
    assert second.endswith("no speedup; the target's")
