"""Words that pin a model name all of it, and a run's id changes with all files that it reads."""

import os
from pathlib import Path

import pytest

from specbench.config.model import ModelConfig
from specbench.config.schema import RunConfig, TaskConfig
from specbench.engine.weights import adapters
from specbench.loading import model_loader
from specbench.loading.model_loader import files_of, pinned
from specbench.methods.model.config import ModelDraftConfig

COMMIT = "a" * 40


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def test_a_gguf_file_is_part_of_what_pins_it(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a target, and of the base of an adapter."""
    monkeypatch.setattr(model_loader, "commit_of", lambda *_: COMMIT)
    config = RunConfig(
        target=ModelConfig(hub="o/t", gguf="t-Q4_0.gguf"), task=TaskConfig(name="own", path="rows.jsonl"),
        draft=ModelDraftConfig(path=str(adapter), base="o/b:sub/b.gguf"),
    )  # fmt: skip
    said: list[str] = []
    found = pinned(config, said.append)
    assert isinstance(found.draft, ModelDraftConfig)
    assert any(line.endswith(f"to pin it: target=o/t@{COMMIT}:t-Q4_0.gguf") for line in said), said
    assert any(line.endswith(f"to pin it: draft.base=o/b@{COMMIT}:sub/b.gguf") for line in said), said
    assert found.draft.base == f"o/b@{COMMIT}:sub/b.gguf"


def test_the_local_base_of_an_adapter_of_the_hub_is_part_of_its_files(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "find_file", lambda source, name, *_: adapter / name)
    base = tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"weights")
    model = ModelConfig(hub="o/a", revision=COMMIT, base=str(base))
    before = files_of(model)
    assert [name for name, *_ in before] == ["model.safetensors"]
    os.utime(base / "model.safetensors", ns=(1, 1))
    assert files_of(model) != before
