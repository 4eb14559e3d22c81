"""EAGLE's layer on toy targets: what the recipe writes, that it learns, resumes, and leaves the target alone."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from specbench.errors import UserError
from specbench.methods.eagle.network import Eagle
from specbench.train.recipe import train
from specbench.train.recipe_schema import DistillPlan, EaglePlan, Recipe
from tests.support.small_recipes import losses


def eagle_recipe(target: Recipe, folder: Path, steps: int, plan: EaglePlan, lr: float = 0.05, **data: Any) -> Recipe:
    return replace(
        target,
        name="layer",
        output=target.output + "-eagle",
        kind="eagle3" if plan.taps else "eagle",
        eagle=plan,
        distill=DistillPlan(target=str(folder), greedy=1.0, sampled=0.0, references=True, max_new_tokens=8),
        optim=replace(target.optim, max_steps=steps, lr=lr, lr_scale="rms", warmup_steps=0),
        data=replace(target.data, eval_path=[], **data),
        log_steps=1,
    )


@pytest.mark.full
def test_the_layer_learns_on_a_frozen_t5_and_a_killed_training_resumes(t5_recipe: Recipe, pairs: str) -> None:
    target = train(t5_recipe)
    before = hashlib.sha256((target / "model.safetensors").read_bytes()).digest()
    recipe = eagle_recipe(t5_recipe, target, 30, EaglePlan(steps=1), test={"toy": pairs}, test_rows=6)
    folder = train(recipe)
    seen = losses(folder)
    assert sum(seen[-10:]) < 0.9 * sum(seen[:10])
    assert hashlib.sha256((target / "model.safetensors").read_bytes()).digest() == before
    assert not (folder / "model.safetensors").exists()
    assert "α of drafted token 2, toy, T=1" in (folder / "README.md").read_text()
    eagle = Eagle.load(folder, AutoModelForSeq2SeqLM.from_pretrained(target), "draft")
    assert (eagle.shape.kind, eagle.shape.layer.crosses) == ("eagle", True)
    # Killed after its last checkpoint: the rest is done again, and comes to the same weights.
    first = load_file(folder / Eagle.FILE)
    (folder / Eagle.FILE).unlink()
    for checkpoint in sorted((folder / "checkpoints").glob("checkpoint-*"))[-1:]:
        assert checkpoint.name == "checkpoint-30"
        for file in sorted(checkpoint.rglob("*")):
            file.unlink()
        checkpoint.rmdir()
    for file in (folder / "checkpoints").glob("*/model.safetensors"):  # as a version before wrote it
        save_file({name.replace("trained.", "eagle.", 1): weight for name, weight in load_file(file).items()}, file)
    again = load_file(train(recipe) / Eagle.FILE)
    assert all((weight == first[name]).all() for name, weight in again.items())


@pytest.mark.full
def test_eagle3_on_a_decoder_only_target_has_a_vocabulary_of_its_own(gpt_recipe: Recipe) -> None:
    target = train(replace(gpt_recipe, optim=replace(gpt_recipe.optim, max_steps=20, lr=0.01)))
    plan = EaglePlan(steps=2, taps=[0, 1, 2], vocabulary=20, own_head=True)
    recipe = eagle_recipe(gpt_recipe, target, 24, plan, hold_out=24)
    folder = train(recipe)
    seen = losses(folder)
    assert sum(seen[-6:]) < 0.9 * sum(seen[:6])
    eagle = Eagle.load(folder, AutoModelForCausalLM.from_pretrained(target), "draft")
    assert eagle.shape.kind == "eagle3" and eagle.lm_head.weight.shape == (20, 32)
    assert len(set(eagle.draft_vocabulary.tolist())) == 20
    other = eagle_recipe(gpt_recipe, target, 1, plan, max_rows=20)  # other tokens are the most frequent
    other = replace(other, output=other.output + "-on", distill=replace(other.distill, start_from=str(folder)))
    later = load_file(train(other) / "eagle.safetensors")
    assert later["draft_vocabulary"].tolist() == eagle.draft_vocabulary.tolist()
    assert "α of drafted token 1, held-out rows, T=0" in (folder / "README.md").read_text()


def test_what_a_recipe_of_eagle_refuses(t5_recipe: Recipe) -> None:
    for plan, said in (
        (EaglePlan(steps=9), "eagle.steps is 9: it must be from 1 to 8"),
        (EaglePlan(steps=1, vocabulary=10), "are eagle3's; set kind=eagle3"),
        (EaglePlan(steps=1, taps=[1, 2], own_head=True), "eagle.own_head=true: give eagle.vocabulary"),
        (EaglePlan(steps=1), "distill.target is not set"),
    ):
        with pytest.raises(UserError, match=said):
            train(replace(t5_recipe, kind="eagle3" if plan.taps else "eagle", eagle=plan))
