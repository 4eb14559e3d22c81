"""The ranges of a recipe's values, checked before any data is read; each message names the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from specbench.errors import UserError
from specbench.train.recipe_schema import PLAN_OF, Recipe

AT_LEAST_ONE = (
    "optim.max_steps", "optim.batch_size", "optim.accumulate", "save_steps", "eval_steps", "log_steps",
    "model.d_model", "model.d_ff", "model.d_kv", "model.heads", "model.encoder_layers", "model.decoder_layers",
    "model.positions", "tokenizer.size", "data.max_source", "data.max_target", "data.test_rows",
    "distill.generate_batch", "distill.max_new_tokens",
)  # fmt: skip
AT_LEAST_ONE_OR_NULL = ("data.max_rows", "data.max_words", "threads")
NOT_NEGATIVE = (
    "optim.warmup_steps", "optim.weight_decay", "optim.clip", "tokenizer.extra_rows", "data.eval_rows",
    "data.passages.rows",
)  # fmt: skip
BELOW_ONE = ("model.dropout", "optim.beta2")
ABOVE_ZERO_OR_NULL = ("optim.max_minutes", "distill.per_source")
MOST_SEED = 2**32 - 1  # of numpy's generator, which transformers seeds with it
CHOICES = {
    "task": ("seq2seq", "lm"), "model.family": ("t5", "gpt2", "own"), "tokenizer.kind": ("unigram", "wordpiece"),
    "optim.lr_scale": ("rms", "flat"),
    # Those of transformers that need no arguments.
    "optim.schedule": (
        "cosine", "linear", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
    ),
}  # fmt: skip
SHARES = ("distill.kl_weight", "distill.greedy", "distill.sampled", "data.passages.scrambled")


def check(recipe: Recipe) -> Recipe:
    """Check a recipe before any data is read; returns it.

    Raises UserError for the first value that cannot work; the message names the key.
    """
    if recipe.distill.target == "":  # as a recipe for any target has it
        raise UserError(
            "distill.target is not set: give the model to train for, distill.target=NAME, ./FOLDER or OWNER/NAME"
        )
    _require_range(recipe, AT_LEAST_ONE, 1)
    words = recipe.data.passages.words
    if len(words) != 2 or not 0 < words[0] <= words[1]:
        raise UserError(f"data.passages.words is {list(words)}: it must be [least, most] words of a passage")
    _require_numbers(recipe)
    for name, allowed in CHOICES.items():
        _require_choice(recipe, name, allowed)
    _require_range(recipe, SHARES, 0, 1)
    plan = recipe.data
    if plan.join_related and not plan.join:
        raise UserError(
            "data.join_related=true: needs data.join, which selects the rows, e.g. data.join={src:[tatoeba]}; or set "
            "data.join_related=false"
        )
    if plan.join and recipe.task != "seq2seq":
        raise UserError(f"data.join: joins pairs of task=seq2seq, but task is '{recipe.task}'; remove data.join")
    if recipe.task == "seq2seq" and recipe.model.decoder_layers > recipe.model.encoder_layers:
        raise UserError(
            f"model.decoder_layers is {recipe.model.decoder_layers}, more than model.encoder_layers "
            f"({recipe.model.encoder_layers}): transformers.generate cannot run such a T5"
        )
    shape = recipe.model
    if recipe.kind == "model" and shape.family == "gpt2" and shape.start_from is None and shape.d_model % shape.heads:
        raise UserError(f"model.d_model is {shape.d_model}: it must be a multiple of model.heads ({shape.heads})")
    _check_kind(recipe)
    if recipe.model.family == "own" and (recipe.distill.target is None or recipe.task != "lm"):
        raise UserError("model.family=own: is for a decoder-only distill.target, whose first and last layers it takes")
    if recipe.data.completions and (recipe.distill.target is None or recipe.task != "lm" or not recipe.data.path):
        raise UserError(
            "data.completions=true: needs data.path=[FILE,...] of prompts and a decoder-only distill.target, which "
            "completes them"
        )
    if recipe.distill.states and (not recipe.data.completions or PLAN_OF[recipe.kind] == "look_ahead"):
        raise UserError(
            "distill.states: requires data.completions=true and a decoder-only target, and does not support kind=pass; "
            "leave it out"
        )
    if not recipe.data.path and not recipe.data.hub:
        raise UserError("data.path is empty and data.hub is not set: give JSONL files, e.g. data.path=[pairs.jsonl.gz]")
    return recipe


def _require_numbers(recipe: Recipe) -> None:
    """Raise UserError for the first number out of its range."""
    for name in AT_LEAST_ONE_OR_NULL:
        _require(recipe, name, lambda value: value is None or value >= 1, "at least 1, or null")
    for name in ABOVE_ZERO_OR_NULL:
        _require(recipe, name, lambda value: value is None or value > 0, "above 0, or null")
    _require_range(recipe, NOT_NEGATIVE, 0)
    for name in BELOW_ONE:
        _require(recipe, name, lambda value: 0 <= value < 1, "at least 0 and below 1")
    _require(recipe, "optim.lr", lambda value: 0 <= value < math.inf, "at least 0, and finite")
    _require(recipe, "data.hold_out", lambda value: value is None or value >= 0, "at least 0, or null")
    _require_range(recipe, ["seed"], 0, MOST_SEED)


def _require(recipe: Recipe, name: str, allows: Callable[[Any], bool], allowed: str) -> None:
    """Raise UserError if the value of the key `name` is not `allowed`."""
    if not allows(value := attrgetter(name)(recipe)):
        raise UserError(f"{name} is {value}: it must be {allowed}")


def _require_range(recipe: Recipe, names: Iterable[str], least: int, most: int | None = None, also: str = "") -> None:
    """`also` ends the message."""
    allowed = f"at least {least}{also}" if most is None else f"from {least} to {most}{also}"
    for name in names:
        _require(recipe, name, lambda value: least <= value <= (math.inf if most is None else most), allowed)


def _require_share(recipe: Recipe, name: str) -> None:
    _require(recipe, name, lambda value: 0 < value <= 1, "above 0 and at most 1")


def _require_choice(recipe: Recipe, name: str, allowed: tuple[str, ...]) -> None:
    if (value := attrgetter(name)(recipe)) not in allowed:
        raise UserError(f"{name} is '{value}': choose one of {', '.join(allowed)}")


def _check_kind(recipe: Recipe) -> None:
    """Check the options of the recipe's kind. Raises UserError for an option of another kind."""
    _require_choice(recipe, "kind", tuple(PLAN_OF))
    usual, plan = Recipe(), PLAN_OF[recipe.kind]
    for other in dict.fromkeys(filter(None, PLAN_OF.values())):
        for one in fields(getattr(recipe, other)):
            name = f"{other}.{one.name}"
            if other != plan and attrgetter(name)(recipe) != attrgetter(name)(usual):
                kinds = " or ".join(kind for kind, its in PLAN_OF.items() if its == other)
                raise UserError(f"{name}: is for kind={kinds}, and this recipe has kind={recipe.kind}")
    if plan is not None:
        CHECK_OF[plan](recipe)
    if recipe.distill.start_from and plan is None:
        raise UserError("distill.start_from: is for heads; a model continues from model.start_from=FOLDER")
    if recipe.distill.target is None and plan is not None:
        raise UserError(f"distill.target is not set: kind={recipe.kind} is trained on a target, e.g. t5-mini")


def _check_blockwise(recipe: Recipe) -> None:
    _require_range(recipe, ["blockwise.heads"], 2, 65, ", the target's own included")


def _check_heads(recipe: Recipe) -> None:
    for name, most in (("number", 64), ("layers", 8), ("narrow", 4096), ("rank", 4096)):
        _require_range(recipe, [f"heads.{name}"], 1, most)
    _require_share(recipe, "heads.decay")


def _check_eagle(recipe: Recipe) -> None:
    plan = recipe.eagle
    _require_range(recipe, ["eagle.steps"], 1, 8)
    if recipe.kind in ("eagle", "mtp") and (plan.taps or plan.vocabulary is not None or plan.own_head):
        raise UserError("eagle.taps, eagle.vocabulary, eagle.own_head: are eagle3's; set kind=eagle3, or none of them")
    if plan.own_head and plan.vocabulary is None:
        raise UserError("eagle.own_head=true: give eagle.vocabulary, how many tokens the head is over")
    if plan.vocabulary is not None:
        _require_range(recipe, ["eagle.vocabulary"], 2, also=", or null")
    if recipe.kind == "peagle":
        _require_range(recipe, ["eagle.layers"], 1, 8)
    _require_share(recipe, "eagle.share")
    _require_share(recipe, "eagle.decay")
    _require_range(recipe, ["eagle.noise", "eagle.feature_weight", "eagle.token_weight"], 0)


def _check_block(recipe: Recipe) -> None:
    if recipe.task != "lm":
        raise UserError(f"task is '{recipe.task}': kind={recipe.kind} needs lm, a decoder-only target")
    _require_range(recipe, ["block.size"], 2, 65)
    _require_range(recipe, ["block.layers"], 1, 64)
    _require_range(recipe, ["block.places"], 1)
    if recipe.kind == "dspark":
        _require_range(recipe, ["block.rank"], 1, 4096)
    elif recipe.block.rank:
        raise UserError(f"block.rank={recipe.block.rank}: is dspark's; set kind=dspark")
    _require_share(recipe, "block.decay")


def _check_specdec(recipe: Recipe) -> None:
    plan = recipe.specdec
    _require_range(recipe, ["specdec.queries"], 1, 64)
    if recipe.task != "seq2seq":
        raise UserError(f"task is '{recipe.task}': kind=specdec needs seq2seq, a target with an encoder")
    if not 1 <= len(plan.layers) <= 8 or min(plan.layers) < 0:
        raise UserError(f"specdec.layers is {list(plan.layers)}: give 1 to 8 of the target's decoder layers, from 0")
    _require_share(recipe, "specdec.decay")
    _require_share(recipe, "specdec.share")


def _check_look_ahead(recipe: Recipe) -> None:
    _require_range(recipe, ["look_ahead.number"], 1, 16)
    _require_range(recipe, ["look_ahead.places"], 1)
    _require_share(recipe, "look_ahead.decay")


def _check_pard(recipe: Recipe) -> None:
    _require_range(recipe, ["pard.steps"], 1, 64)
    _require_share(recipe, "pard.share")
    _require_share(recipe, "pard.decay")
    if recipe.model.start_from is None:
        raise UserError("model.start_from is not set: pard trains a draft on, e.g. gpt-nano")


CHECK_OF: dict[str, Callable[[Recipe], None]] = {
    "blockwise": _check_blockwise, "heads": _check_heads, "eagle": _check_eagle, "specdec": _check_specdec,
    "block": _check_block, "look_ahead": _check_look_ahead, "pard": _check_pard,
}  # fmt: skip
