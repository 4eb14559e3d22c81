"""P-EAGLE's layers on a toy target: what the recipe writes, that they learn, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from specbench.errors import UserError
from specbench.methods.peagle.network import PEagle
from specbench.train.recipe import train
from specbench.train.recipe_schema import DistillPlan, EaglePlan, Recipe

PLAN = EaglePlan(steps=3, layers=2, taps=[0, 1, 2], vocabulary=20)


def layers_recipe(target: Recipe, folder: Path, steps: int, plan: EaglePlan = PLAN) -> Recipe:
    return replace(
        target,
        name="layers",
        output=target.output + "-peagle",
        kind="peagle",
        eagle=plan,
        distill=DistillPlan(target=str(folder), greedy=1.0, sampled=0.0, references=True, max_new_tokens=8),
        optim=replace(target.optim, max_steps=steps, lr=0.05, lr_scale="rms", warmup_steps=0),
        data=replace(target.data, eval_path=[], hold_out=24),
        log_steps=1,
    )


def test_layers_learn_on_a_frozen_target(gpt_recipe: Recipe) -> None:
    target = train(replace(gpt_recipe, optim=replace(gpt_recipe.optim, max_steps=20, lr=0.01)))
    folder = train(layers_recipe(gpt_recipe, target, 24))
    history = json.loads((folder / "training-log.json").read_text())
    seen = [float(entry["loss"]) for entry in history if "loss" in entry]
    assert sum(seen[-6:]) < 0.9 * sum(seen[:6])
    network = AutoModelForCausalLM.from_pretrained(target)
    layers = PEagle.load(folder, network, "draft")
    assert (layers.shape.layers, len(layers.draft_vocabulary), layers.shape.mask) == (
        2,
        20,
        network.config.pad_token_id,
    )
    assert "α of drafted token 3, held-out rows, T=0" in (folder / "README.md").read_text()


def test_what_it_refuses(t5_recipe: Recipe, tmp_path: Path) -> None:
    for plan, said in (
        (replace(PLAN, layers=0), "eagle.layers is 0: it must be from 1 to 8"),
        (replace(PLAN, share=0.0), "eagle.share is 0.0: it must be above 0"),
    ):
        with pytest.raises(UserError, match=said):
            train(layers_recipe(t5_recipe, tmp_path, 1, plan))
    target = train(replace(t5_recipe, optim=replace(t5_recipe.optim, max_steps=1)))
    with pytest.raises(UserError, match="distill.target: peagle is for decoder-only targets; use recipe=eagle3"):
        train(layers_recipe(t5_recipe, target, 1))
