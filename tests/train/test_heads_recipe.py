"""Toy heads on toy targets: what the recipe writes, that it learns, resumes and leaves the target alone."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from specbench.errors import UserError
from specbench.methods.blockwise.draft import BlockwiseHeads
from specbench.train.recipe import train
from specbench.train.recipe_schema import BlockwisePlan, DistillPlan, Recipe
from tests.support.small_recipes import losses


def heads_recipe(target: Recipe, folder: Path, steps: int, **data: object) -> Recipe:
    return replace(
        target,
        name="heads",
        output=target.output + "-heads",
        kind="blockwise",
        blockwise=BlockwisePlan(heads=3, hidden=16),
        distill=DistillPlan(target=str(folder), greedy=1.0, sampled=0.0, references=True, max_new_tokens=8),
        optim=replace(target.optim, max_steps=steps, lr=0.05, warmup_steps=0),
        data=replace(target.data, eval_path=[], **data),
        log_steps=1,
    )


@pytest.mark.full
def test_heads_learn_on_a_frozen_t5_and_are_kept_with_it(t5_recipe: Recipe, pairs: str) -> None:
    target = train(t5_recipe)
    before = hashlib.sha256((target / "model.safetensors").read_bytes()).digest()
    recipe = heads_recipe(t5_recipe, target, 40, test={"toy": pairs}, test_rows=6)
    folder = train(recipe)
    seen = losses(folder)
    assert sum(seen[-10:]) < 0.9 * sum(seen[:10])
    assert hashlib.sha256((target / "model.safetensors").read_bytes()).digest() == before
    assert not (folder / "model.safetensors").exists()
    facts = json.loads((folder / "config.json").read_text())
    assert (facts["heads"], facts["target"]) == (3, target.name)
    assert "α of head 3, toy, T=1" in (folder / "README.md").read_text()
    BlockwiseHeads.load(folder, AutoModelForSeq2SeqLM.from_pretrained(target), "draft")
    first = load_file(folder / "heads.safetensors")
    (folder / "heads.safetensors").unlink()
    assert all((weight == first[name]).all() for name, weight in load_file(train(recipe) / "heads.safetensors").items())


@pytest.mark.full
def test_heads_continue_from_earlier_heads(t5_recipe: Recipe, tmp_path: Path) -> None:
    target = train(t5_recipe)
    recipe = heads_recipe(t5_recipe, target, 12)
    first = train(recipe)
    plan = replace(recipe.distill, start_from=str(first))
    still = replace(recipe, output=str(tmp_path / "still"), distill=plan, optim=replace(recipe.optim, lr=0.0))
    earlier, later = (load_file(folder / "heads.safetensors") for folder in (first, train(still)))
    assert all((weight == earlier[name]).all() for name, weight in later.items())
    assert f"| {first.name} " in (Path(still.output) / "README.md").read_text()
    wider = replace(still, output=str(tmp_path / "wider"), blockwise=BlockwisePlan(heads=4, hidden=16))
    with pytest.raises(UserError, match="distill.start_from=.*: not weights of the kind and shape that this recipe"):
        train(wider)
    of_nothing = replace(plan, start_from=str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="give a folder with one .safetensors file of such heads"):
        train(replace(wider, output=str(tmp_path / "of-nothing"), distill=of_nothing))


def test_heads_of_a_decoder_only_target(gpt_recipe: Recipe) -> None:
    target = train(gpt_recipe)
    folder = train(heads_recipe(gpt_recipe, target, 3, hold_out=24))
    BlockwiseHeads.load(folder, AutoModelForCausalLM.from_pretrained(target), "draft")
    assert "α of head 2, held-out rows, T=0" in (folder / "README.md").read_text()


def test_heads_need_a_target_and_a_number(t5_recipe: Recipe) -> None:
    with pytest.raises(UserError, match="distill.target is not set: kind=blockwise is trained on a target"):
        train(replace(t5_recipe, kind="blockwise", blockwise=BlockwisePlan(heads=3)))
    with pytest.raises(UserError, match="distill.start_from: is for heads; a model continues from model.start_from"):
        train(replace(t5_recipe, distill=DistillPlan(start_from="models/heads")))
    with pytest.raises(UserError, match="blockwise.heads is 1: it must be from 2 to 65"):
        train(replace(t5_recipe, kind="blockwise", blockwise=BlockwisePlan(heads=1)))
