"""Toy look-ahead embeddings: what each is about, by plain loops over uncached readings; what their recipe writes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from specbench.engine.saved_heads import LookAheadEmbeddings
from specbench.errors import UserError
from specbench.train.recipe import make_learner, train
from specbench.train.recipe_schema import DistillPlan, LookAheadPlan, Recipe
from tests.support.networks import network
from tests.support.toy_batch import SOURCE, TEXT, batch, every_place

PLAN = LookAheadPlan(number=3, places=4)


def random_learner(family: str) -> Any:
    torch.manual_seed(3)
    return make_learner(Recipe(kind="pass", look_ahead=PLAN), network(family, 4), Dataset.from_dict({}))


def plain_logits(learner: Any, family: str, ahead: int, place: int) -> torch.Tensor:
    """Logits [V] about token `place` of the text, `ahead` look-ahead positions after what was known before."""
    known = [*TEXT[: place - ahead], *learner.ids[:ahead]]
    given = {"input_ids": torch.tensor([known])}
    if family == "t5":
        given = {"input_ids": torch.tensor([SOURCE]), "decoder_input_ids": torch.tensor([[0, *known]])}
    logits: torch.Tensor = learner.target(**given).logits[0, -1]
    return logits


@torch.no_grad()
@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_predictions_and_loss_are_those_of_a_plain_loop(family: str) -> None:
    """Forward KL of each embedding at the tokens that count, a mean for each, weighted by .8 to its number."""
    learner = random_learner(family)
    given, first = batch(family), int(family == "gpt2")  # GPT-2 predicts nothing about the first token
    learner.eval()
    texts = {name: ids for name, ids in given.items() if name != "labels"}
    p = learner.target(**texts).logits
    expected = 0.0
    for ahead in (1, 2, 3):
        one = {name: ids[:1] for name, ids in texts.items()}
        ours = learner.as_draft(ahead)(every_place(one), **one)[0]
        terms = []
        for place in range(ahead + first, len(TEXT)):
            plain = plain_logits(learner, family, ahead, place)
            assert torch.allclose(ours[place - first], plain, atol=1e-3)
            log_p, log_q = p[0, place - first].log_softmax(-1), plain.log_softmax(-1)
            terms += [float((log_p.exp() * (log_p - log_q)).sum())] * (2 if place < len(TEXT) - 3 else 1)
        expected += 0.8**ahead * sum(terms) / len(terms)
    assert float(learner(**given)["loss"]) == pytest.approx(expected, rel=1e-3)
    learner.train()
    assert len(learner.read(texts).places_P) == PLAN.places


def recipe_of(target: Recipe, folder: Path, **keys: Any) -> Recipe:
    return replace(
        target,
        name="pass",
        output=f"{target.output}-pass",
        kind="pass",
        look_ahead=PLAN,
        distill=DistillPlan(target=str(folder), greedy=1.0, sampled=0.0, references=True, max_new_tokens=8),
        optim=replace(target.optim, max_steps=30, lr=0.3, lr_scale="rms", warmup_steps=0),
        data=replace(target.data, eval_path=[], **keys),
        bf16=False,
        save_steps=30,
    )


@pytest.mark.full
def test_embeddings_learn_and_are_kept_with_their_target(t5_recipe: Recipe, pairs: str) -> None:
    target = train(t5_recipe)
    folder = train(recipe_of(t5_recipe, target, test={"toy": pairs}, test_rows=6))
    seen = [entry["loss"] for entry in json.loads((folder / "training-log.json").read_text()) if "loss" in entry]
    assert sum(seen[-5:]) < 0.9 * sum(seen[:5])
    card = (folder / "README.md").read_text()
    assert "α of look-ahead position 1, toy, T=0" in card and "α of look-ahead position 3, toy, T=1" in card
    loaded = LookAheadEmbeddings.load(folder, AutoModelForSeq2SeqLM.from_pretrained(target), "draft")
    assert loaded.weight_LD.shape == (3, 32)
    with pytest.raises(UserError, match="the look-ahead embeddings in toy-t5-pass were trained on"):
        LookAheadEmbeddings.load(folder, network("t5", 4), "draft")


def test_embeddings_of_a_decoder_only_target(gpt_recipe: Recipe) -> None:
    target = train(gpt_recipe)
    recipe = recipe_of(gpt_recipe, target, hold_out=24)
    folder = train(replace(recipe, optim=replace(recipe.optim, max_steps=3)))
    LookAheadEmbeddings.load(folder, AutoModelForCausalLM.from_pretrained(target), "draft")
    assert "α of look-ahead position 3, held-out rows, T=0" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"number": 17}, "look_ahead.number is 17: it must be from 1 to 16"),
        ({"number": 2, "places": 0}, "look_ahead.places is 0: it must be at least 1"),
        ({"number": 2, "decay": 2.0}, "look_ahead.decay is 2.0: it must be above 0"),
        ({"number": 2}, "distill.target is not set: kind=pass is trained on a target"),
    ],
)
def test_what_a_recipe_refuses(keys: dict[str, Any], said: str, t5_recipe: Recipe) -> None:
    with pytest.raises(UserError, match=said):
        train(replace(t5_recipe, kind="pass", look_ahead=LookAheadPlan(**keys)))
