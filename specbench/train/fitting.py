"""Settings that a recipe leaves to its target: the kind of text, the family, the field, and the depths of taps.

The general recipes (`medusa`, `eagle`, …) are written for an encoder-decoder target that translates. With a
decoder-only target the same recipe trains on running text. Only the target's config is read, no weights.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from specbench.config.places import SHIPPED
from specbench.errors import MachineError, UserError
from specbench.train import networks
from specbench.train.prompt_rows import is_prompt
from specbench.train.recipe_places import resolve, with_places
from specbench.train.recipe_rows import read
from specbench.train.recipe_schema import PLAN_OF, DataPlan, Recipe

TEXTS = SHIPPED + "data/sum-mini.jsonl.gz"  # held-out texts, as ende-mini is held-out pairs
HELD_OUT_TEXTS = 200  # of a decoder-only target's rows, if no other rows measure what is trained
TEXT_FIELDS = ("text", "prompt")  # of rows of running text, the first that a row has
TASKS = ("chat", "code", "summaries", "translation", "tools-mini")  # prompts that ship, which are not trained on
PROMPT_TOKENS = 1024  # of a prompt to complete: templates and texts to summarise make most longer than a sentence


def fitted_to_target(recipe: Recipe, given: Collection[str] = ()) -> Recipe:
    """`recipe` for its `distill.target`; the keys in `given` remain as they are.

    A target of the hub whose config cannot be read changes nothing: loading it reports the error. Raises UserError if a
    given `task` contradicts the target, or if a folder holds no config that can be read.
    """
    recipe = with_places(recipe)
    config = _config_of(recipe)
    kind = None if config is None else "seq2seq" if config.is_encoder_decoder else "lm"
    if kind is not None and kind != recipe.task:
        called = "decoder-only" if kind == "lm" else "an encoder-decoder"
        if "task" in given:
            raise UserError(
                f"task={recipe.task}: distill.target={recipe.distill.target} is {called}, which requires task={kind}"
            )
        if recipe.kind == "specdec":
            raise UserError(
                f"distill.target={recipe.distill.target}: is decoder-only, and specdec reads the encoder of a T5; "
                "use another recipe, such as medusa or eagle"
            )
        recipe = replace(recipe, task=kind)
    if kind is not None and recipe.model.start_from is None and recipe.model.family != "own":
        recipe = replace(recipe, model=replace(recipe.model, family="gpt2" if kind == "lm" else "t5"))
    if config is not None:
        recipe = with_depths(recipe, config)
    if recipe.task != "lm":
        return recipe
    data = _text_plan(recipe.data, given, completes=bool(recipe.distill.target))
    if kind is not None and data.hold_out is None and not data.test:
        data = replace(data, hold_out=HELD_OUT_TEXTS)
    return replace(recipe, data=data)


def usual_taps(layers: int) -> list[int]:
    """EAGLE-3's depths in a target of `layers` decoder layers: 2, n/2 and n-3, or thirds if these are not in order.

    Li et al. 2025 (2503.01840) fuse a low, a middle and a high depth; 2, n/2 and n-3 are taken from their code.
    """
    theirs = [2, layers // 2, layers - 3]
    return theirs if theirs == sorted(set(theirs)) else sorted({layers // 3, 2 * layers // 3, layers})


def with_depths(recipe: Recipe, config: Any) -> Recipe:
    """`recipe` with the usual depths if what it trains reads the target's states and it names none.

    A block drafter never reads the last, whose state is the head's. Raises UserError for a depth that the target, whose
    `transformers` config this is, has not.
    """
    layers = getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
    taps = recipe.eagle.taps
    if taps and not 0 <= min(taps) <= max(taps) <= layers:
        raise UserError(
            f"eagle.taps={list(taps)}: the target has {layers} decoder layers; the usual depths are "
            f"eagle.taps={usual_taps(layers)}"
        )
    if recipe.kind in ("eagle3", "peagle") and not taps:
        return replace(recipe, eagle=replace(recipe.eagle, taps=usual_taps(layers)))
    if PLAN_OF[recipe.kind] == "block" and not recipe.block.taps:
        inner = sorted({min(depth, layers - 1) for depth in usual_taps(layers)})
        return replace(recipe, block=replace(recipe.block, taps=inner))
    return recipe


def _config_of(recipe: Recipe) -> Any:
    """The `transformers` config of the target; None if there is no target, or the hub's cannot be read."""
    if not (target := recipe.distill.target):
        return None
    try:
        return networks.load_config(target, recipe.distill.revision)
    except (UserError, MachineError):
        if Path(resolve(target)).exists():  # else its rows would be read, and called wrong, for another kind of target
            raise
        return None


def _text_plan(plan: DataPlan, given: Collection[str], completes: bool) -> DataPlan:
    """`plan` for running text: without the recipe's own files of sentence pairs, and with the field that rows have.

    `completes`: there is a target, which completes rows that are prompts.
    """
    own = {SHIPPED + "data/ende-mini.jsonl.gz", SHIPPED + "data/ende-mini-sentences.jsonl.gz"}
    if "data.exclude" not in given and own & {*plan.exclude}:
        plan = replace(plan, exclude=[TEXTS, *(file for file in plan.exclude if file not in own)])
    if not any(name.startswith("data.test") for name in given):
        plan = replace(plan, test={name: file for name, file in plan.test.items() if file not in own})
    there = [file for file in plan.path if Path(resolve(file)).exists()]  # training reports the others
    row = next(chain.from_iterable(islice(read(file), 1) for file in there), None)
    # For running text the key stays unset, as in the fingerprints of trainings that began before the key existed.
    if plan.completions is None and completes and "data.text" not in given and row is not None and is_prompt(row):
        plan = replace(plan, completions=True)
    if plan.completions:
        return _prompt_plan(plan, given)
    if "data.text" in given or row is None or isinstance(row.get(plan.text), str):
        return plan
    return replace(plan, text=next((name for name in TEXT_FIELDS if isinstance(row.get(name), str)), plan.text))


def _prompt_plan(plan: DataPlan, given: Collection[str]) -> DataPlan:
    """`plan` for prompts to complete: without the shipped tasks' prompts, and of any usual length."""
    if "data.max_source" not in given:
        plan = replace(plan, max_source=PROMPT_TOKENS)
    if "data.exclude" in given:
        return plan
    return replace(
        plan, exclude=[*dict.fromkeys([TEXTS, *plan.exclude, *(f"{SHIPPED}data/{one}.jsonl.gz" for one in TASKS)])]
    )
