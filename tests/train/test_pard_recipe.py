"""PARD's training on toy models: what the recipe writes, that it learns and resumes, and what it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from specbench.errors import UserError
from specbench.methods.pard.config import FIELD
from specbench.train.recipe import train
from specbench.train.recipe_schema import DistillPlan, PardPlan, Recipe


def pard_recipe(target: Recipe, folder: Path, steps: int, plan: PardPlan | None = None) -> Recipe:
    return replace(
        target,
        name="at-once",
        output=target.output + "-pard",
        kind="pard",
        pard=plan or PardPlan(steps=3),
        model=replace(target.model, start_from=str(folder)),
        distill=DistillPlan(target=str(folder), greedy=1.0, sampled=0.0, references=True, max_new_tokens=8),
        optim=replace(target.optim, max_steps=steps, lr=0.02, lr_scale="flat", warmup_steps=0),
        data=replace(target.data, eval_path=[], hold_out=24),
        log_steps=1,
        save_steps=10,
    )


def test_a_model_learns_to_draft_at_once_and_a_killed_training_resumes(gpt_recipe: Recipe) -> None:
    target = train(replace(gpt_recipe, optim=replace(gpt_recipe.optim, max_steps=20, lr=0.01)))
    recipe = pard_recipe(gpt_recipe, target, 20)
    folder = train(recipe)
    history = json.loads((folder / "training-log.json").read_text())
    seen = [float(entry["loss"]) for entry in history if "loss" in entry]
    assert sum(seen[-6:]) < 0.9 * sum(seen[:6])
    config = json.loads((folder / "config.json").read_text())
    assert (config[FIELD], config["spd_type"]) == (config["pad_token_id"], "pard")
    assert "α of drafted token 3, held-out rows, T=0" in (folder / "README.md").read_text()
    first = load_file(folder / "model.safetensors")
    shutil.rmtree(folder / "checkpoints" / "checkpoint-20")
    again = load_file(train(recipe) / "model.safetensors")
    assert all((weight == first[name]).all() for name, weight in again.items())


def test_what_it_refuses(t5_recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pard.share is 0.0: it must be above 0"):
        train(pard_recipe(t5_recipe, tmp_path, 1, PardPlan(3, share=0.0)))
    recipe = pard_recipe(t5_recipe, tmp_path, 1)
    with pytest.raises(UserError, match="model.start_from is not set: pard trains a draft on"):
        train(replace(recipe, model=replace(recipe.model, start_from=None)))
    target = train(replace(t5_recipe, optim=replace(t5_recipe.optim, max_steps=1)))
    with pytest.raises(UserError, match="distill.target: pard is for decoder-only targets"):
        train(pard_recipe(t5_recipe, target, 1))
