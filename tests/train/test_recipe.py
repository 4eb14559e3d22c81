"""Toy versions of every kind of recipe: the folder they write, resuming, and distillation."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from accelerate import PartialState
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from specbench.errors import UserError
from specbench.train.recipe import _begin, arguments, train
from specbench.train.recipe_schema import DistillPlan, Recipe
from specbench.train.resuming import fingerprint
from specbench.train.trainers import SizedTrainer
from tests.support.host_reads import HostReads
from tests.support.small_recipes import losses


@pytest.mark.full
def test_a_t5_recipe_writes_a_folder_that_loads_and_a_draft_can_be_distilled_from_it(
    t5_recipe: Recipe, nano_recipe: Recipe, pairs: str
) -> None:
    t5_recipe.data.eval_path, t5_recipe.data.eval_rows = [pairs], 4
    folder = train(t5_recipe)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == len(tokenizer) == 330
    assert '"truncation": null' in (folder / "tokenizer.json").read_text()
    assert tokenizer("go: The man")["input_ids"][-1] == tokenizer.eos_token_id
    assert len(losses(folder)) == 6
    card = (folder / "README.md").read_text()
    assert "pairs.jsonl.gz" in card and str(folder.parent) not in card
    assert "recipe.yaml" in card
    assert str(folder.parent) not in (folder / "recipe.yaml").read_text()

    nano_recipe.data = replace(nano_recipe.data, test={"toy": pairs}, test_rows=6, eval_path=[])
    folder = train(nano_recipe)
    draft = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert draft.config.num_decoder_layers == 1
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == tokenizer.get_vocab()
    written = (folder / "target-greedy.jsonl").read_text().splitlines()
    assert len(written) == 216 and (folder / "target-sampled.jsonl").is_file()
    history = json.loads((folder / "training-log.json").read_text())
    assert all(0 <= entry["alpha"] <= 1 for entry in history if "alpha" in entry)
    assert "α, toy, T=1" in (folder / "README.md").read_text()


@pytest.mark.full
def test_a_killed_training_goes_on_from_its_last_checkpoint_to_the_same_weights(t5_recipe: Recipe) -> None:
    whole = train(t5_recipe)
    cut = replace(t5_recipe, output=t5_recipe.output + "-cut")
    cut.tokenizer = replace(cut.tokenizer, start_from=str(whole))  # two fits of a Unigram differ in the last digits

    class Killed(Exception):
        pass

    original = SizedTrainer.training_step
    steps = {"done": 0}

    def dying(self, *args, **kwargs):
        if steps["done"] == 4:  # after the checkpoint of step 3: the disk is as a kill leaves it
            raise Killed
        steps["done"] += 1
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SizedTrainer, "training_step", dying)
        with pytest.raises(Killed):
            train(cut)
    assert not (Path(cut.output) / "model.safetensors").exists()
    resumed = train(cut)
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, resumed))
    assert first.keys() == second.keys()
    for name, weight in first.items():
        torch.testing.assert_close(weight, second[name], msg=name)
    assert losses(resumed)[-1] == losses(whole)[-1]
    assert float((resumed / "seconds.txt").read_text()) > 0


def test_a_text_recipe_writes_a_decoder_only_model_with_its_wordpiece_vocabulary(gpt_recipe: Recipe) -> None:
    folder = train(gpt_recipe)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(folder)) == 100
    assert model.config.activation_function == "gelu"
    draft = replace(
        gpt_recipe,
        output=gpt_recipe.output + "-nano",
        distill=DistillPlan(target=str(folder), max_new_tokens=6),
        data=replace(gpt_recipe.data, test={"toy": gpt_recipe.data.path[0]}, test_rows=5, hold_out=24),
    )
    card = (train(draft) / "README.md").read_text()
    assert "α, held-out rows, T=0" in card
    assert re.search(r"\| distilled from +\| toy-gpt", card)


def test_a_trained_model_can_be_fine_tuned(t5_recipe: Recipe) -> None:
    first = train(t5_recipe)
    tuned = replace(
        t5_recipe, output=t5_recipe.output + "-tuned", model=replace(t5_recipe.model, start_from=str(first))
    )
    tuned.optim = replace(tuned.optim, max_steps=2, lr=0.001, lr_scale="flat")
    assert AutoModelForSeq2SeqLM.from_pretrained(train(tuned)).config.d_model == 32


def test_a_draft_with_another_vocabulary_is_refused(t5_recipe: Recipe, nano_recipe: Recipe) -> None:
    train(replace(t5_recipe, optim=replace(t5_recipe.optim, max_steps=1)))
    other = replace(t5_recipe, output=t5_recipe.output + "-other", optim=replace(t5_recipe.optim, max_steps=1))
    other.data = replace(other.data, prefix="another prefix: ")
    nano_recipe.tokenizer.start_from = str(train(other))
    with pytest.raises(UserError, match="vocabulary differs from distill.target=.*tokens differ.*start_from"):
        train(nano_recipe)


@pytest.fixture
def own_environment() -> Iterator[None]:
    """Variables that a test sets end with it: transformers tells accelerate by one that networks are compiled."""
    with patch.dict(os.environ):
        yield


def test_a_network_may_be_compiled(gpt_recipe: Recipe, own_environment: None) -> None:
    told = arguments(replace(gpt_recipe, compile=True), Path(gpt_recipe.output), False)
    assert told.torch_compile and told.optim == "adamw_torch_fused"
    assert fingerprint(replace(gpt_recipe, compile=True)) == fingerprint(gpt_recipe)


def test_a_step_of_training_waits_for_no_number(gpt_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host reads of a GPU at each step holds it up: its batches are then made while the GPU waits.

    One read is transformers' own, which asks whether the mask is full; a compiled network does not ask.
    """
    counts: list[int] = []
    original = SizedTrainer.training_step

    def counted(self, *args, **kwargs):
        counts.append(reads.total - reads.counts["to"])  # what is moved to this machine's device, a CPU
        return original(self, *args, **kwargs)

    monkeypatch.setattr(SizedTrainer, "training_step", counted)
    optim = replace(gpt_recipe.optim, max_steps=6)
    with HostReads() as reads:
        folder = train(replace(gpt_recipe, log_steps=6, save_steps=6, optim=optim))
    assert len(counts) == 6 and all(after - before <= 1 for before, after in pairwise(counts[1:])), reads.counts
    (told,) = [entry for entry in json.loads((folder / "training-log.json").read_text()) if "loss" in entry]
    assert "tokens_per_second" in told


@pytest.mark.parametrize(("compiles", "size", "sizes"), [(True, 7, "full"), (True, 1000, "rest"), (False, 7, "both")])
def test_blocks_are_read_as_tensors(
    compiles: bool, size: int, sizes: str, gpt_recipe: Recipe, own_environment: None
) -> None:
    """And if the network is compiled, in batches of one size: another is compiled again."""
    recipe = replace(gpt_recipe, compile=compiles, optim=replace(gpt_recipe.optim, batch_size=size))
    Path(recipe.output).mkdir()
    begun = _begin(recipe, Path(recipe.output), PartialState(cpu=True))
    read = begun.trainer.train_dataset[:]["input_ids"]
    assert torch.is_tensor(read) and read.tolist() == begun.train_set["input_ids"][:]
    rest = len(read) % size
    found = {len(batch["labels"]) for batch in begun.trainer.get_train_dataloader()}
    assert rest and found == {"full": {size}, "rest": {rest}, "both": {size, rest}}[sizes]
