"""The first token of a prompt occurs in training: a model begins from a token that it has read before."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from specbench.config.model import ModelConfig
from specbench.config.paths import shipped
from specbench.config.recipes import recipe_content
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary
from specbench.train import networks
from specbench.train.recipe_schema import ModelShape, Recipe
from specbench.train.sets import training_set
from specbench.train.tokenizers import fields, make_tokenizer
from tests.support.composed import RECIPES, composed

TRAINED = {"lm": "gpt-mini", "seq2seq": "t5-mini"}


def as_run_reads_it(recipe: Recipe, rows: list[dict], output: Path) -> tuple[Vocabulary, Path]:
    """The vocabulary that `specbench run` loads for the model of `recipe`, and the model's folder."""
    own = shipped("models", TRAINED[recipe.task])
    if recipe.tokenizer.start_from or recipe.model.start_from or recipe.distill.target is not None:
        recipe.tokenizer.start_from, folder = str(own), own
    else:
        pieces = {("unigram", "lm"): 290, ("unigram", "seq2seq"): 320, ("wordpiece", "lm"): 100}
        recipe.tokenizer.size = pieces[recipe.tokenizer.kind, recipe.task]
        tokenizer, folder = make_tokenizer(recipe, rows, output), output / "saved"
        small = ModelShape(
            recipe.model.family, d_model=16, d_ff=16, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1
        )
        networks.save(networks.build(small, tokenizer), tokenizer, folder)
    return load_tokenizer(ModelConfig(path=str(folder)), "target"), folder


@pytest.mark.parametrize("name", RECIPES)
def test_the_first_token_of_a_prompt_occurs_in_training(name: str, rows: list[dict], tmp_path: Path) -> None:
    distils = "target" in (recipe_content(name).get("distill") or {})
    open_keys = (["distill.target=x"] if distils else []) + (["model.start_from=x"] if name == "pard" else [])
    recipe = composed(name, "data.path=[x.jsonl]", *open_keys)
    vocabulary, folder = as_run_reads_it(recipe, rows, tmp_path)
    tokenizer = make_tokenizer(recipe, rows, tmp_path)
    learnt = training_set(recipe, rows, tokenizer, None, tmp_path)
    text = rows[0][fields(recipe)[0]]
    if recipe.task == "lm":
        read = {token for block in learnt["input_ids"] for token in block[:-1]}
        starts = {vocabulary.prompt(given, "", 512).prefix[0] for given in ("", text)}
        assert starts <= read, tokenizer.convert_ids_to_tokens(sorted(starts - read))
    else:
        prompt = vocabulary.prompt(recipe.data.prefix + text, "", 512)
        assert prompt.source[0] in {source[0] for source in learnt["input_ids"]}
        network = networks.load(str(folder), "t5")
        labels = torch.tensor([learnt["labels"][0]])
        assert network._shift_right(labels)[0, 0] == prompt.prefix[0]


def test_texts_of_a_wordpiece_model_begin_and_end(gpt_recipe: Recipe, rows: list[dict], tmp_path: Path) -> None:
    tokenizer = make_tokenizer(gpt_recipe, rows, tmp_path)
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    line = [
        token for block in training_set(gpt_recipe, rows, tokenizer, None, tmp_path)["input_ids"] for token in block
    ]
    assert line[0] == begin and all(after == begin for token, after in pairwise(line) if token == end)
    written = tokenizer("The man sees the tree today.")["input_ids"]
    assert written[0] == begin and tokenizer.decode(written, skip_special_tokens=True) == "the man sees the tree today."
