"""Our small server for OpenVINO GenAI, with a stand-in for the package: where a text ends."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specbench.interop.starting.openvino_server import Pipeline


class Settings:
    """What is set of a scheduler or of a generation."""


class Tokenizer:
    def get_eos_token_id(self) -> int:
        return 2

    def encode(self, text: str) -> Any:
        return SimpleNamespace(input_ids=SimpleNamespace(shape=(1, 3)))

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(97 + one) for one in tokens)


class Generates:
    """A pipeline that writes 5 6 7 8 …, up to what the config says."""

    def __init__(self, *given: object, **more: object) -> None:
        self.configs: list[Any] = []

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def generate(self, read: object, config: Any, streamer: Any) -> Any:
        self.configs.append(config)
        tokens = []
        for token in range(5, 5 + config.max_new_tokens):
            tokens.append(token)
            streamer.write(token)
            if token in config.stop_token_ids:
                break
        return SimpleNamespace(tokens=[tokens])


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("openvino_genai")
    for name in ("SchedulerConfig", "GenerationConfig", "StreamerBase"):
        setattr(made, name, type(name, (Settings,), {}))
    made.StreamingStatus = SimpleNamespace(RUNNING=0)  # type: ignore[attr-defined]
    made.LLMPipeline = Generates  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openvino_genai", made)


@pytest.mark.parametrize(("ends", "written", "finish"), [([2], 6, "length"), ([2, 8], 4, "stop"), ([], 6, "length")])
def test_a_text_ends_at_each_of_the_targets_ends(ends: list[int], written: int, finish: str, package: None) -> None:
    options = {
        "model": "m", "name": "target", "port": 1, "draft": None, "lookup": 0, "gamma": 0, "precision": "f32",
        "cache": "f32", "cache_gb": 1, "threads": 1, "vocabulary": 20, "ends": ends,
    }  # fmt: skip
    pipeline = Pipeline(options)
    (choice,) = pipeline.complete({"prompt": "abc", "max_tokens": 6, "temperature": 0}, lambda tokens, text: None)[
        "choices"
    ]
    assert len(choice["token_ids"]) == written and choice["finish_reason"] == finish
    assert pipeline.pipeline.configs[0].stop_token_ids == {2, *ends}
