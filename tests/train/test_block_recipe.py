"""A block drafter on a toy target: what the recipe writes, that it learns, ends in time, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from specbench.errors import UserError
from specbench.methods.dflash.published import published_block
from specbench.train.recipe import train
from specbench.train.recipe_schema import BlockPlan, DistillPlan, Recipe


def block_recipe(target: Recipe, folder: Path, rank: int, steps: int = 24, minutes: float | None = None) -> Recipe:
    return replace(
        target,
        name="block",
        output=f"{target.output}-block-{rank}",
        kind="dspark" if rank else "dflash",
        block=BlockPlan(size=4, layers=1, taps=[0, 1], places=8, rank=rank),
        distill=DistillPlan(target=str(folder)),
        optim=replace(target.optim, max_steps=steps, lr=0.01, lr_scale="flat", warmup_steps=0, max_minutes=minutes),
        data=replace(target.data, eval_path=[], hold_out=24),
        log_steps=1,
    )


@pytest.mark.parametrize("rank", [0, 4])
def test_a_block_drafter_learns_on_a_frozen_target(rank: int, gpt_recipe: Recipe) -> None:
    target = train(replace(gpt_recipe, optim=replace(gpt_recipe.optim, max_steps=20, lr=0.01)))
    folder = train(block_recipe(gpt_recipe, target, rank))
    history = json.loads((folder / "training-log.json").read_text())
    seen = [float(entry["loss"]) for entry in history if "loss" in entry]
    assert sum(seen[-6:]) < 0.9 * sum(seen[:6])
    network, kind = AutoModelForCausalLM.from_pretrained(target), "dspark" if rank else "dflash"
    found = published_block(str(folder), {}, "draft", kind, network.config)
    drafter = found.load(network)
    assert (drafter.shape.drafted, drafter.shape.taps) == (4 if rank else 3, (0, 1))
    card = (folder / "README.md").read_text()
    assert f"α of drafted token {drafter.shape.drafted}, held-out rows, T=0" in card
    assert f"α of drafted token {drafter.shape.drafted + 1}" not in card
    with pytest.raises(UserError, match="were trained on"):
        found.load(AutoModelForCausalLM.from_config(network.config))


def test_a_training_ends_in_time_and_goes_on(gpt_recipe: Recipe) -> None:
    target = train(replace(gpt_recipe, optim=replace(gpt_recipe.optim, max_steps=2)))
    short = block_recipe(gpt_recipe, target, 0, steps=5, minutes=1e-6)
    assert "1 of" in (train(short) / "README.md").read_text()
    assert "5 of" in (train(replace(short, optim=replace(short.optim, max_minutes=None))) / "README.md").read_text()


def test_what_cannot_be_trained_is_refused(t5_recipe: Recipe, gpt_recipe: Recipe) -> None:
    with pytest.raises(UserError, match="task is 'seq2seq': kind=dflash needs lm, a decoder-only target"):
        train(block_recipe(t5_recipe, Path("none"), 0))
    with pytest.raises(UserError, match="optim.max_minutes is 0: it must be above 0, or null"):
        train(block_recipe(gpt_recipe, Path("none"), 0, minutes=0))
    target = train(replace(gpt_recipe, optim=replace(gpt_recipe.optim, max_steps=1)))
    wrong = block_recipe(gpt_recipe, target, 0)
    with pytest.raises(UserError, match=r"block.taps is \[9\]: give depths from 0 to 1 of this target"):
        train(replace(wrong, block=replace(wrong.block, taps=[9])))
