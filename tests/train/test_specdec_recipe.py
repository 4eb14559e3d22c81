"""SpecDec's decoder on a toy target: what the recipe writes, that it learns, and what each query is trained towards."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM

from specbench.engine.beside.eager import EagerEntries
from specbench.engine.cache_names import cache_of
from specbench.errors import UserError
from specbench.methods.specdec.beside import ParallelEntries, beside
from specbench.methods.specdec.network import ParallelDecoder
from specbench.train.recipe import make_learner, train
from specbench.train.recipe_schema import DistillPlan, Recipe, SpecDecPlan
from tests.support.networks import network
from tests.support.toy_batch import every_place

PLAN = SpecDecPlan(queries=3, layers=[0, 1], share=1.0)
SOURCE, TEXT = [5, 9, 12, 30, 1], [7, 9, 30, 4, 22, 8, 5, 11]


def batch() -> dict[str, torch.Tensor]:
    """A text, and the same with a shorter source and text, padded."""
    texts = torch.tensor([TEXT, [*TEXT[:-3], -100, -100, -100]])
    shifted = torch.cat([torch.zeros_like(texts[:, :1]), texts[:, :-1].clamp(min=0)], 1)
    sources = torch.tensor([SOURCE, [*SOURCE[:3], 0, 0]])
    return {
        "input_ids": sources, "attention_mask": (sources != 0).long(), "labels": texts, "decoder_input_ids": shifted,
    }  # fmt: skip


@torch.no_grad()
def test_teacher_forced_predictions_are_those_of_drafting() -> None:
    """Of a padded batch, each text against steps of the decoder alone; a query later they are others."""
    learner: Any = make_learner(Recipe(kind="specdec", specdec=PLAN), network("t5", 4), Dataset.from_dict({}))
    given = {name: ids for name, ids in batch().items() if name != "labels"}
    for row, (source, text) in enumerate(((SOURCE, TEXT), (SOURCE[:3], TEXT[:-3]))):
        output = learner.target(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[0]]), use_cache=True)
        read = cache_of(output).cross_attention_cache.layers
        states = [(layer.keys, layer.values) for layer in read]
        cache = ParallelEntries(learner.trained, EagerEntries(beside(learner.trained), states.copy))
        for ahead in range(3):
            ours_TV = learner.as_draft(ahead)(every_place(given), **given)[row]
            for place in range(ahead, len(text)):
                begun = [0, *text][: place - ahead + 1]
                cache.rollback(0)
                plain_KV = cache.step(begun, 3)
                assert torch.allclose(ours_TV[place], plain_KV[ahead], atol=1e-3)
                assert not torch.allclose(ours_TV[place], plain_KV[ahead - 1], atol=1e-2)


@pytest.mark.full
def test_the_decoder_learns_on_a_frozen_t5(t5_recipe: Recipe, pairs: str) -> None:
    target = train(t5_recipe)
    before = hashlib.sha256((target / "model.safetensors").read_bytes()).digest()
    recipe = replace(
        t5_recipe,
        name="decoder",
        output=t5_recipe.output + "-specdec",
        kind="specdec",
        specdec=PLAN,
        distill=DistillPlan(target=str(target), greedy=1.0, sampled=0.0, references=True, max_new_tokens=8),
        optim=replace(t5_recipe.optim, max_steps=20, lr=0.05, lr_scale="rms", warmup_steps=0),
        data=replace(t5_recipe.data, eval_path=[], test={"toy": pairs}, test_rows=4),
        log_steps=1,
    )
    folder = train(recipe)
    history = json.loads((folder / "training-log.json").read_text())
    losses = [float(entry["loss"]) for entry in history if "loss" in entry]
    assert sum(losses[-6:]) < 0.9 * sum(losses[:6])
    assert hashlib.sha256((target / "model.safetensors").read_bytes()).digest() == before
    assert "α of drafted token 3, toy, T=1" in (folder / "README.md").read_text()
    decoder = ParallelDecoder.load(folder, AutoModelForSeq2SeqLM.from_pretrained(target), "draft")
    assert (decoder.queries, decoder.layers) == (3, [0, 1])


def test_what_the_recipe_refuses(t5_recipe: Recipe, gpt_recipe: Recipe) -> None:
    for plan, said in (
        (SpecDecPlan(queries=65), "specdec.queries is 65: it must be from 1 to 64"),
        (SpecDecPlan(queries=3), r"specdec.layers is \[\]: give 1 to 8 of the target's decoder layers"),
        (replace(PLAN, share=0.0), "specdec.share is 0.0: it must be above 0 and at most 1"),
        (PLAN, "distill.target is not set"),
    ):
        with pytest.raises(UserError, match=said):
            train(replace(t5_recipe, kind="specdec", specdec=plan))
    with pytest.raises(UserError, match="task is 'lm': kind=specdec needs seq2seq"):
        train(replace(gpt_recipe, kind="specdec", specdec=PLAN))
    with pytest.raises(UserError, match=r"specdec.layers is \[0, 2\]: the target has 2 decoder layers"):
        make_learner(
            Recipe(kind="specdec", specdec=replace(PLAN, layers=[0, 2])), network("t5", 4), Dataset.from_dict({})
        )
    with pytest.raises(UserError, match="distill.target: SpecDec's decoder reads the encoder of a T5"):
        make_learner(Recipe(kind="specdec", specdec=PLAN), network("gpt2", 4), Dataset.from_dict({}))
