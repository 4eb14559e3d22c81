"""Checkpoints in Medusa's own layout, written with random weights."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH, ROWS = 32, 64


def write(
    folder: Path, kind: str = "pt", layers: int = 1, output: bool = True, width: int = WIDTH, rows: int = ROWS
) -> dict:
    """Three heads; the config says 2, as that of published heads does."""
    torch.manual_seed(5)
    state: dict[str, torch.Tensor] = {}
    for head in range(3):
        for layer in range(layers):
            state[f"{head}.{layer}.linear.weight"] = torch.randn(width, width) * 0.3
            state[f"{head}.{layer}.linear.bias"] = torch.randn(width)
        if output:
            state[f"{head}.{layers}.weight"] = torch.randn(rows, width)
    config = {"medusa_num_heads": 2, "medusa_num_layers": layers, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "safetensors":
        save_file(state, folder / "medusa_lm_head.safetensors")
    else:
        torch.save(state, folder / "medusa_lm_head.pt", _use_new_zipfile_serialization=kind == "pt")
    return state
