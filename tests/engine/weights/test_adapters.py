"""LoRA adapters as target and as draft: merged at load, equal to peft's own sums, over the base that they name."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.config.paths import shipped
from specbench.engine.session import Prompt
from specbench.engine.weights.load import load_model
from specbench.errors import MachineError, UserError
from specbench.records.frame import Records
from specbench.text.tokenizer import load_tokenizer

BASE = str(shipped("models", "gpt-mini"))


def adapter(folder: Path, seed: int, base: str = BASE, size: float = 0.5, **more: object) -> Path:
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    names = {name.rpartition(".")[2] for name, one in network.named_modules() if isinstance(one, Conv1D)}
    told: Any = {"target_modules": sorted(names), "fan_in_fan_out": True, **more}
    made = get_peft_model(network, LoraConfig(r=4, lora_alpha=8, **told))
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, size * 0.02)
    made.save_pretrained(folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": base}))
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = tmp_path_factory.mktemp("lora")
    return [adapter(made / f"a{seed}", seed) for seed in (1, 2)]


@pytest.mark.parametrize("engine", ["eager", "native"])
def test_logits_are_those_of_peft(engine: str, adapters: list[Path]) -> None:
    config = ModelConfig(path=str(adapters[0]))
    vocabulary = load_tokenizer(config, "target")
    ids = vocabulary.prompt("One day a little girl", "", 99).prefix
    model = load_model(config, "target", vocabulary, torch.float32, torch.device("cpu"), engine)
    session = model.start(Prompt((), ids))
    found = session.extend(ids[session.length :])[-1]
    network = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    plain = network(torch.tensor([ids])).logits[0, -1]
    wanted = PeftModel.from_pretrained(network, str(adapters[0]))(torch.tensor([ids])).logits[0, -1]
    size = vocabulary.size
    assert torch.allclose(found[:size], wanted[:size], atol=2e-4) and not torch.allclose(plain, wanted, atol=1e-2)


def test_two_adapters_of_one_base_are_target_and_draft(adapters: list[Path], tmp_path: Path) -> None:
    words = [f"target={adapters[0]}", f"draft={adapters[1]}", "task=lm-mini", "limit=2", "max_new_tokens=16",
             "dtype=float32", "warmup=0", f"results={tmp_path}"]  # fmt: skip
    assert main(["run", *words]) == 0
    (run,) = Records(tmp_path).all_runs.to_dict("records")
    config = Records(tmp_path).whole(run["run_id"])["config"]
    assert run["lossless"] and run["identical"] == 1 and 0.2 < run["alpha"] <= 1
    assert config["target"]["base"] == config["draft"]["base"] == BASE  # what the adapters' configs say
    os.utime(adapters[1] / "adapter_model.safetensors", ns=(1, 1))  # other weights, as far as a run's id can tell
    assert main(["run", *words]) == 0
    assert len(Records(tmp_path).all_runs) == 2 or len({*Records(tmp_path).all_runs["run_id"]} - {run["run_id"]}) == 1


def test_the_base_that_is_given_wins(tmp_path: Path) -> None:
    made = adapter(tmp_path / "a", 3, base="nobody/nothing-of-that-name")
    found = load_tokenizer(ModelConfig(path=str(made), base=BASE), "target")
    assert found.size == load_tokenizer(ModelConfig(shipped="gpt-mini"), "target").size


def changed(folder: Path, **values: object) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"base_model_name_or_path": None}, "names no base; give target.base=./FOLDER or OWNER/NAME"),
        ({"base_model_name_or_path": "./not-here"}, "adapts ./not-here, which is not here; give target.base="),
        ({"peft_type": "PREFIX_TUNING"}, "is an adapter of the kind PREFIX_TUNING, and only LoRA adapters are merged"),
        ({"base_model_name_or_path": str(shipped("models", "gpt-nano"))}, "does not fit its base"),
    ],
)
def test_what_cannot_be_merged_is_one_line(
    values: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = adapter(tmp_path / "a", 4)
    changed(made, **values)
    assert main(["run", f"target={made}", "draft=lookup", "task=lm-mini", "limit=1", f"results={tmp_path}/r"]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error, error


def test_a_folder_without_its_weights_asks_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor one that is no adapter, though `base` says so: peft would look for a repository of the folder's name."""
    asked: list[str] = []
    monkeypatch.setattr("peft.utils.save_and_load.file_exists", lambda repo_id, **_: asked.append(repo_id))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    made = adapter(tmp_path / "a", 5)
    (made / "adapter_model.safetensors").unlink()
    (tmp_path / "b").mkdir()
    for words in ([f"target={made}"], [f"target={tmp_path / 'b'}", f"target.base={BASE}"]):
        assert main(["run", *words, "draft=lookup", "task=lm-mini", "limit=1", f"results={tmp_path}/r"]) == 2
        error = capsys.readouterr().err
        assert "holds no adapter of peft (adapter_config.json and adapter_model.safetensors)" in error, error
    assert not asked


def test_weights_that_are_not_finite_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = adapter(tmp_path / "a", 6, size=float("inf"))
    assert main(["run", f"target={made}", "draft=lookup", "task=lm-mini", "limit=1", f"results={tmp_path}/r"]) == 2
    error = capsys.readouterr().err
    assert "does not fit its base: NaN" in error and "Traceback" not in error, error


def test_without_peft_one_line_names_it(adapters: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.weights.adapters.find_spec", lambda name: None)
    config = ModelConfig(path=str(adapters[0]))
    vocabulary = load_tokenizer(config, "target")
    with pytest.raises(UserError, match=r"LoRA adapters are read by the package peft: pip install"):
        load_model(config, "target", vocabulary, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("more", [{"modules_to_save": ["ln_f"]}, {"use_dora": True}, {}])
def test_each_tensor_that_such_an_adapter_saves_is_required(more: dict[str, object], tmp_path: Path) -> None:
    """Modules that are saved whole, and DoRA's magnitudes, too."""
    made = adapter(tmp_path / "a", 7, **more)
    file = made / "adapter_model.safetensors"
    weights = load_file(file)
    taken = next(name for name in sorted(weights) if not more or ("lora_A" not in name and "lora_B" not in name))
    save_file({name: tensor for name, tensor in weights.items() if name != taken}, file)
    with pytest.raises(UserError, match=f"does not fit its base: 1 tensors are missing: {re.escape(taken)}"):
        loaded(made)


def loaded(folder: Path, base: str | None = None) -> Any:
    config = ModelConfig(path=str(folder), base=base)
    return load_model(config, "target", load_tokenizer(config, "target"), torch.float32, torch.device("cpu"), "eager")


@pytest.mark.parametrize("place", ["PeftModel", "merge"])
def test_a_lack_of_memory_is_the_machines(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ...")

    name = "peft.PeftModel" if place == "PeftModel" else "peft.tuners.lora.LoraModel.merge_and_unload"
    monkeypatch.setattr(name, fails)
    with pytest.raises(MachineError, match="target: its adapter does not fit on cpu beside it: .*DefaultCPUAllocator"):
        loaded(adapter(tmp_path / "a", 8))


def test_a_lack_of_memory_for_weights_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it is a RuntimeError, which was said to be a damaged checkpoint."""

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr("specbench.engine.weights.load._from_files", fails)
    config = ModelConfig(shipped="gpt-mini")
    with pytest.raises(MachineError, match="target: .*does not fit on cpu"):
        load_model(config, "target", load_tokenizer(config, "target"), torch.float32, torch.device("cpu"), "eager")


def test_a_base_is_found_from_where_the_adapter_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(BASE, tmp_path / "models" / "base")
    made = adapter(tmp_path / "models" / "a", 9, base="../base")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert loaded(made).vocabulary_size
