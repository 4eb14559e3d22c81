"""What a recipe leaves open and its target decides: the kind of text, the family, and the field that is read.

The general recipes (`medusa`, `eagle`, …) are written for an encoder-decoder target that translates. With a
decoder-only target the same recipe trains on running text. Only the target's config is read, no weights.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from transformers import AutoConfig

from specbench.errors import UserError
from specbench.train.places import SHIPPED, resolve
from specbench.train.rows import read
from specbench.train.schema import DataPlan, Recipe

TEXT_FIELDS = ("text", "prompt")  # of rows of running text, the first that a row has


def fitted_to_target(recipe: Recipe, given: Collection[str] = ()) -> Recipe:
    """`recipe` for its `distill.target`; the keys in `given` remain as they are.

    A target whose config cannot be read changes nothing: loading it reports the error.

    Raises:
        UserError: a given `task` contradicts the target.
    """
    kind = _kind_of(recipe)
    if kind is not None and kind != recipe.task:
        called = "decoder-only" if kind == "lm" else "an encoder-decoder"
        if "task" in given:
            raise UserError(
                f"task={recipe.task}: distill.target={recipe.distill.target} is {called}, which requires task={kind}"
            )
        if recipe.specdec.queries:
            raise UserError(
                f"distill.target={recipe.distill.target}: is decoder-only, and specdec reads the encoder of a T5; "
                "use another recipe, such as medusa or eagle"
            )
        recipe = replace(recipe, task=kind)
    if kind is not None and recipe.model.start_from is None:
        recipe = replace(recipe, model=replace(recipe.model, family="gpt2" if kind == "lm" else "t5"))
    return replace(recipe, data=_text_plan(recipe.data, given)) if recipe.task == "lm" else recipe


def _kind_of(recipe: Recipe) -> str | None:
    """The `task` that the target requires; None if there is no target, or its config cannot be read."""
    if recipe.distill.target is None:
        return None
    try:
        config = AutoConfig.from_pretrained(resolve(recipe.distill.target), revision=recipe.distill.revision)
    except (OSError, ValueError):
        return None
    return "seq2seq" if config.is_encoder_decoder else "lm"


def _text_plan(plan: DataPlan, given: Collection[str]) -> DataPlan:
    """`plan` for running text: without the recipe's own files of sentence pairs, and with the field that rows have."""
    own = {SHIPPED + "data/ende-mini.jsonl.gz", SHIPPED + "data/ende-mini-sentences.jsonl.gz"}
    if "data.exclude" not in given:
        plan = replace(plan, exclude=[file for file in plan.exclude if file not in own])
    if not any(name.startswith("data.test") for name in given):
        plan = replace(plan, test={name: file for name, file in plan.test.items() if file not in own})
    there = [file for file in plan.path if Path(resolve(file)).exists()]  # training reports the others
    row = next(chain.from_iterable(islice(read(file), 1) for file in there), None)
    if "data.text" in given or row is None or isinstance(row.get(plan.text), str):
        return plan
    return replace(plan, text=next((name for name in TEXT_FIELDS if isinstance(row.get(name), str)), plan.text))
