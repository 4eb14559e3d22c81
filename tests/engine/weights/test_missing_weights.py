"""Weights that are not in the files are refused by name, never random; tensors that nothing reads are said."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.config.paths import shipped
from specbench.engine.weights.load import load_network
from specbench.engine.weights.random_weights import config_of
from specbench.errors import UserError
from specbench.methods.eagle.network import Eagle
from specbench.methods.medusa.draft import MedusaHeads
from specbench.train import networks

Tensors = dict[str, torch.Tensor]
AUTO: dict[str, Any] = {"t5-nano": AutoModelForSeq2SeqLM, "gpt-nano": AutoModelForCausalLM}
CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"


def copied(name: str, folder: Path) -> tuple[Path, Tensors]:
    """A copy of a shipped folder, and its tensors."""
    shutil.copytree(shipped("models", name), folder)
    file = next(folder.glob("*.safetensors"))
    return folder, load_file(file)


def write(tensors: Tensors, file: Path) -> None:
    save_file(tensors, file, {"format": "pt"})


def load(folder: Path, auto: Any) -> Any:
    return load_network(ModelConfig(path=str(folder)), "target", auto, torch.bfloat16, CPU)


@pytest.mark.parametrize("name", AUTO)
def test_each_tensor_taken_away_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    folder, tensors = copied(name, tmp_path / "model")
    assert load(folder, AUTO[name]).unused == ()
    for taken in tensors:
        write({one: tensor for one, tensor in tensors.items() if one != taken}, folder / WEIGHTS)
        with pytest.raises(UserError, match="in none of its files, and would be random") as refused:
            load(folder, AUTO[name])
        assert taken in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("part", ["target", "draft"])
def test_renamed_weights_are_no_model(part: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, tensors = copied("t5-nano", tmp_path / "model")
    write({f"other.{name}": tensor for name, tensor in tensors.items()}, folder / WEIGHTS)
    rest = ["draft=lookup"] if part == "target" else ["target=t5-mini", f"draft={folder}"]
    own = [f"target.path={folder}", "task=ende-mini"] if part == "target" else []
    assert (
        main(["run", *own, *rest, "limit=1", "dtype=float32", "engine=eager", "device=cpu", f"results={tmp_path}"]) == 2
    )
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith(f"specbench: {part}.path={folder}: cannot be loaded: ")
    assert re.search(r": 37 of its weights are in none of its files, and would be random: .* and 33 more$", said)
    assert not list(tmp_path.glob("runs/*"))


def test_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    folder, tensors = copied("gpt-nano", tmp_path / "model")
    name = next(iter(tensors))
    write(tensors | {name: tensors[name][..., :-1].contiguous()}, folder / WEIGHTS)
    with pytest.raises(UserError, match=rf"{name} is \[.*\] in its files and \[.*\] by its config"):
        load(folder, AutoModelForCausalLM)


@pytest.mark.parametrize(("name", "count"), [("t5-nano", "num_layers"), ("gpt-nano", "n_layer")])
@pytest.mark.parametrize("layers", [0, -1])
def test_a_model_without_layers_is_refused(name: str, count: str, layers: int, tmp_path: Path) -> None:
    folder, _ = copied(name, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {count: layers}), encoding="utf-8")
    with pytest.raises(UserError, match=rf"layers?={layers}; a model has 1 layer or more"):
        load(folder, AUTO[name])


@pytest.mark.parametrize("farthest", [8, 15, 16])
def test_distances_that_the_buckets_of_t5_cannot_hold_are_refused(farthest: int, tmp_path: Path) -> None:
    folder, _ = copied("t5-nano", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["relative_attention_num_buckets"] == 32
    found = {"relative_attention_max_distance": farthest}
    (folder / "config.json").write_text(json.dumps(config | found), encoding="utf-8")
    with pytest.raises(UserError, match=rf"max_distance={farthest}; with 32 buckets it must be above 16$"):
        load(folder, AUTO["t5-nano"])
    small = {"model_type": "t5", "vocab_size": 40, "d_model": 16, "d_ff": 16, "num_layers": 1, **found}
    with pytest.raises(UserError, match=r"draft.architecture: .* it must be above 16$"):
        config_of(small, "draft")


def test_tensors_that_nothing_reads_are_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, tensors = copied("t5-nano", tmp_path / "model")
    more = {f"other.{number}.weight": torch.zeros(2) for number in range(6)}
    write(tensors | more, folder / WEIGHTS)
    keys = [
        "draft=lookup",
        "engine=eager",
        "task=ende-mini",
        "limit=1",
        "max_new_tokens=4",
        "warmup=0",
    ]
    assert main(["run", f"target.path={folder}", *keys, "dtype=float32", "device=cpu", f"results={tmp_path}"]) == 0
    (said,) = [line for line in capfd.readouterr().err.splitlines() if "other." in line]
    names = "other.0.weight, other.1.weight, other.2.weight, other.3.weight and 2 more"
    assert said == f"target: tensors of its files that nothing reads: {names}"


@pytest.mark.parametrize(("name", "family"), [("t5-nano", "t5"), ("gpt-nano", "gpt2")])
def test_training_starts_from_whole_models_alone(
    name: str, family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, tensors = copied(name, tmp_path / "model")
    taken = sorted(tensors)[3]
    write({one: tensor for one, tensor in tensors.items() if one != taken} | {"x": torch.zeros(1)}, folder / WEIGHTS)
    with pytest.raises(UserError, match=taken):
        networks.load(str(folder), family)
    write(tensors | {"x": torch.zeros(1)}, folder / WEIGHTS)
    networks.load(str(folder), family)
    assert f"{folder}: tensors of its files that nothing reads: x" in capfd.readouterr().err


@pytest.mark.parametrize(("name", "kind"), [("gpt-mini-medusa", MedusaHeads), ("gpt-mini-eagle", Eagle)])
def test_each_tensor_taken_from_heads_is_refused_by_its_name(name: str, kind: Any, tmp_path: Path) -> None:
    network = load(shipped("models", "gpt-mini"), AutoModelForCausalLM).network
    folder, tensors = copied(name, tmp_path / "heads")
    file = next(folder.glob("*.safetensors"))
    kind.load(folder, network, "draft")
    for taken in tensors:
        write({one: tensor for one, tensor in tensors.items() if one != taken}, file)
        with pytest.raises(UserError) as refused:
            kind.load(folder, network, "draft")
        assert taken in str(refused.value) and "\n" not in str(refused.value)
    write(tensors | {"more": torch.zeros(1)}, file)
    with pytest.raises(UserError, match="more"):
        kind.load(folder, network, "draft")
