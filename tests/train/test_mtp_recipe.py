"""A depth of multi-token prediction on a toy target: what the recipe writes, that it learns, and what it refuses."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from specbench.errors import UserError
from specbench.methods.mtp.network import Mtp
from specbench.train.recipe import train
from specbench.train.recipe_schema import DistillPlan, EaglePlan, Recipe


def depth_recipe(target: Recipe, folder: Path, steps: int) -> Recipe:
    return replace(
        target,
        name="depth",
        output=target.output + "-mtp",
        kind="mtp",
        eagle=EaglePlan(steps=2, noise=0.0),
        distill=DistillPlan(target=str(folder), greedy=1.0, sampled=0.0, references=True, max_new_tokens=8),
        optim=replace(target.optim, max_steps=steps, lr=0.05, lr_scale="rms", warmup_steps=0),
        data=replace(target.data, eval_path=[], hold_out=24),
        log_steps=1,
    )


def test_a_depth_learns_on_a_frozen_target(gpt_recipe: Recipe) -> None:
    target = train(replace(gpt_recipe, optim=replace(gpt_recipe.optim, max_steps=20, lr=0.01)))
    before = hashlib.sha256((target / "model.safetensors").read_bytes()).digest()
    folder = train(depth_recipe(gpt_recipe, target, 24))
    history = json.loads((folder / "training-log.json").read_text())
    seen = [float(entry["loss"]) for entry in history if "loss" in entry]
    assert sum(seen[-6:]) < 0.9 * sum(seen[:6])
    assert hashlib.sha256((target / "model.safetensors").read_bytes()).digest() == before
    network = AutoModelForCausalLM.from_pretrained(target)
    depth = Mtp.load(folder, network, "draft")
    assert depth.fc.weight.shape == (32, 64)
    assert "α of drafted token 2, held-out rows, T=0" in (folder / "README.md").read_text()


def test_an_encoder_decoder_is_refused(t5_recipe: Recipe, tmp_path: Path) -> None:
    target = train(replace(t5_recipe, optim=replace(t5_recipe.optim, max_steps=1)))
    with pytest.raises(UserError, match="distill.target: mtp is for decoder-only targets; use recipe=eagle"):
        train(depth_recipe(t5_recipe, target, 1))
