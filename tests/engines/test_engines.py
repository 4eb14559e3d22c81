"""Real engines, each started with a small target, and with its draft: what they accept, count, and whether it is right.

`make test-engines` runs these tests; `make test` does not. An engine that is not installed is skipped by name: its
program is named in SPECBENCH_VLLM, SPECBENCH_LLAMA_SERVER, SPECBENCH_OPENVINO, SPECBENCH_TRANSFORMERS or
SPECBENCH_LLAMA_CPP_PYTHON, or found on the PATH.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.config.server import BY_TEXT
from specbench.errors import MachineError, UserError
from specbench.interop.serving.completions import Completions
from specbench.interop.serving.settings.wanted import Recommended, Weights
from specbench.interop.starting.startable import STARTABLE, as_flags, settings_of
from specbench.interop.starting.two_servers import Asked, Servers, started
from specbench.records.catalog import Catalog
from specbench.sampling import Sampling
from tests.support.llamas import SIZE, llama_pair
from tests.support.proxy import FAULTS, before

pytestmark = pytest.mark.timeout(1200)
GAMMA = 3
PROMPT = list(b"It was the best of times, it was the worst of times, it was ")
SMALL = ["task=lm-mini", "dtype=float32", "device=cpu", "warmup=1", f"gamma={GAMMA}"]
# What is known to be wrong in a version; a test that finds it right is told, too.
KNOWN = {
    ("vllm", "lookup", 1): "vLLM 0.32 for CPUs: completions with n-gram drafts do not follow the target's distribution",
    ("vllm", "model", 1): "vLLM 0.32 for CPUs: likely the same, by its source; not seen to fail",
    ("openvino", "model", 1): "OpenVINO GenAI 2026.4.1: accepts by the probability of another token than the drafted",
}


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return llama_pair(tmp_path_factory.mktemp("llamas"))


@pytest.fixture(scope="session", params=[(one.name, kind) for one in STARTABLE.values() for kind in one.drafts],
                ids=lambda param: "-".join(param))  # fmt: skip
def served(
    request: pytest.FixtureRequest, pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    engine, kind = request.param
    if STARTABLE[engine].program() is None:
        pytest.skip(f"{engine}: not installed ({STARTABLE[engine].variable})")
    with started(asked(engine, kind, pair, tmp_path_factory.mktemp(f"{engine}-{kind}")), print) as servers:
        yield servers


def asked(engine: str, kind: str, pair: tuple[Path, Path], results: Path) -> Asked:
    target, draft = (Weights(str(folder)) for folder in pair)
    drafting = Recommended(target, kind, draft if kind == "model" else None, {"match": 2}, GAMMA, "exact", 1.0)
    return Asked(engine, target, drafting, longest=384, threads=os.cpu_count() or 1, results=results)


def by_text(served: Servers) -> list[str]:
    """How an engine that reads no ids is asked."""
    return ["send=text", "stream=false"] if served.asked.engine in BY_TEXT else []


def tokens_of(text: list[int]) -> list[int]:
    """Characters as tokens of the small target: the new line is the first, then all from the space on."""
    return [byte - 31 for byte in text]


def test_it_takes_the_settings_that_are_recommended(served: Servers) -> None:
    drafting = served.drafting()
    drafting.process.require_running()
    assert served.asked.drafting is not None
    if served.asked.engine == "openvino":
        assert settings_of("openvino", served.asked.drafting)["generate"]["num_assistant_tokens"] == GAMMA
        assert f'"gamma": {GAMMA}' in drafting.flags
        return
    if served.asked.engine == "transformers":
        said = json.loads(drafting.flags.partition("generation_config.json: ")[2])
        settings = settings_of("transformers", served.asked.drafting)["generate"]
        assert settings["prompt_lookup_num_tokens"] == GAMMA and settings.items() <= said.items()
        return
    printed = as_flags(settings_of(served.asked.engine, served.asked.drafting))
    # Names of models are those that are recommended, or of the files that they were converted to.
    assert all(word in drafting.flags for word in printed if word.startswith("--"))


def test_its_counters_are_those_of_its_completions(served: Servers) -> None:
    assert served.asked.drafting is not None
    server = Completions(served.drafting().url, "target")
    if served.asked.engine in BY_TEXT:
        pytest.skip(f"{served.asked.engine} counts no draft tokens")
    prompt, sampling = tokens_of(PROMPT), Sampling()
    server.complete(prompt, 8, sampling, 0)
    first = server.counts()
    if first is None and served.asked.engine == "openvino" and served.asked.drafting.kind == "lookup":
        pytest.skip("OpenVINO GenAI does not tell how many tokens its prompt lookup drafted")
    assert first is not None
    tokens = 0
    requests = 6
    for number in range(requests):
        tokens += server.complete(prompt[number:], 60, sampling, number).tokens
    last = server.counts()
    assert last is not None
    seen = last.since(first)
    assert seen.passes > 0 and 0 <= seen.accepted <= seen.drafted <= GAMMA * seen.passes
    # Each completion has a first token of its prefill; its last pass may be cut. Passes without a draft are not counted
    # by all, so that there is no lower bound where drafts are looked up.
    assert seen.passes + seen.accepted <= tokens + requests * GAMMA
    if served.asked.drafting.kind == "model":
        assert seen.passes + seen.accepted >= tokens - requests * (GAMMA + 2)


@pytest.mark.parametrize("temperature", [0, 1])
def test_its_completions_are_the_targets(
    served: Servers, temperature: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert served.asked.drafting is not None
    key = (served.asked.engine, served.asked.drafting.kind, temperature)
    if key in KNOWN:
        # Only what is known of it: an engine that fails to answer is no expected failure.
        request.applymarker(pytest.mark.xfail(reason=KNOWN[key], raises=AssertionError, strict=False))
    found, _ = measured(served, tmp_path, f"sampling.temperature={temperature}", "limit=30", "max_new_tokens=150")
    print(served.drafting().engine, key, found["verdict"], found["verdict_reason"])
    assert found["lossless"], found["verdict_reason"]
    assert "cannot tell" not in found["verdict_reason"]


def test_a_planted_fault_is_found(served: Servers, tmp_path: Path) -> None:
    with before(served.drafting().url) as proxy:
        proxy.change = lambda number, token: _other(token) if number % 50 == 49 else token
        found, code = measured(served, tmp_path, "limit=6", "max_new_tokens=100", url=proxy.url)
    assert code == 1, found["verdict_reason"]
    assert found["lossless"] is False and found["verified"] is False


def _other(token: Any) -> Any:
    return (token + 1) % (SIZE - 1) if isinstance(token, int) else chr(32 + (ord(token) - 31) % 95)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_server_that_fails_is_one_line_and_nothing_is_lost(
    served: Servers, fault: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["limit=4", "max_new_tokens=24", "timeout=3", "flags=the same"]
    with before(served.drafting().url) as proxy:
        proxy.fault, proxy.good = fault, 3  # a request before timing starts, and two prompts
        found, code = measured(served, tmp_path, *words, url=proxy.url)
        said = capfd.readouterr()
        assert code in (1, 2) and found is None
        errors = [line for line in said.err.splitlines() if line.startswith("specbench: ") and "http://" in line]
        assert len(errors) == 1 and "Traceback" not in said.err, said.err
        proxy.fault = None
        proxy.seen = 0
        found, code = measured(served, tmp_path, *words, url=proxy.url)
    assert found["prompts"] == 4


def test_an_engine_that_is_gone_is_one_line_that_names_its_log(served: Servers, tmp_path: Path) -> None:
    plain = served.plain()
    plain.process.stop()
    with pytest.raises(MachineError) as raised:
        served.plain()
    assert str(plain.log) in str(raised.value) and "\n" not in str(raised.value)
    served.stop()


def test_weights_that_it_cannot_load_are_one_line(served: Servers, tmp_path: Path) -> None:
    served.stop()  # memory
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    broken = Asked(served.asked.engine, Weights(str(folder)), None, longest=64, results=tmp_path)
    with pytest.raises((MachineError, UserError)) as raised, started(broken, print) as servers:
        servers.plain()
    assert "\n" not in str(raised.value)


def measured(served: Servers, results: Path, *words: str, url: str | None = None) -> tuple[Any, int]:
    """The summary of the command's record, None without one; and its exit code."""
    plain = served.plain()
    command = ["server", url or served.drafting().url, f"plain={plain.url}", f"target.path={served.asked.target.place}"]
    code = main([*command, *SMALL, *by_text(served), *words, f"results={results}"])
    heads = Catalog(results).heads
    return (dict(heads[0].summary) if heads else None), code
