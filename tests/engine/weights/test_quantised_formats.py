"""Checkpoints in formats that other packages read: one line names the package, or that the format is not supported."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from specbench.cli import main
from specbench.config.paths import shipped
from specbench.engine.weights import quantised


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            "gptq",
            "holds gptq weights, which the package gptqmodel reads: pip install gptqmodel, or give",
        ),
        ("awq", "holds awq weights, which the package gptqmodel reads"),
        ("compressed-tensors", "which the package compressed-tensors reads: pip install compressed-tensors, or"),
        ("bitsandbytes", "which the package bitsandbytes reads"),
        ("torchao", "which the package torchao reads"),
        ("mxfp4", "holds mxfp4 weights, which are not supported (gptq, awq, compressed-tensors, torchao, bitsandbytes"),
    ],
)
def test_one_line_names_the_package(
    method: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda name: None)
    folder = tmp_path / "m"
    shutil.copytree(shipped("models", "gpt-mini"), folder)
    config = json.loads((folder / "config.json").read_text())
    extra = {"bits": 4, "group_size": 32, "load_in_4bit": True, "quant_type": "int8"}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method} | extra}))
    for key in ("target", "draft"):
        others = ["target=gpt-mini", f"draft={folder}"] if key == "draft" else [f"target={folder}", "draft=lookup"]
        assert main(["run", *others, "task=lm-mini", "limit=1", f"results={tmp_path}/r"]) == 2
        error = capsys.readouterr().err
        assert f"{key}: m {said}" in error or said in error, error
        assert "Traceback" not in error


def test_what_a_gpu_or_another_engine_is_needed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda name: object())
    with pytest.raises(Exception, match="target: m holds awq weights, which need a CUDA device; give the checkpoint"):
        quantised.require_quantised("awq", "target", "m", "auto", torch.device("cpu"))
    with pytest.raises(Exception, match="engine=native: target holds torchao weights, which engine=eager runs"):
        quantised.require_quantised("torchao", "target", "m", "native", torch.device("cpu"))
    quantised.require_quantised("torchao", "target", "m", "auto", torch.device("cpu"))
