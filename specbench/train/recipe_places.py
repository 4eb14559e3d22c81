"""Where a recipe's files and models are: a path, a hub name, or `shipped:models/t5-mini` for what ships.

A model can also be named as in `specbench run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from specbench.config.model import place_of
from specbench.config.paths import shipped
from specbench.config.places import SHIPPED, home, model_at
from specbench.config.recipes import made_by
from specbench.errors import UserError
from specbench.train.recipe_schema import Recipe

MODELS = {  # the options that name a model, and the options of their commits
    "model.start_from": "model.revision", "tokenizer.start_from": None, "distill.target": "distill.revision",
    "distill.start_from": None,
}  # fmt: skip


def with_places(recipe: Recipe, folders: Iterable[Path] = ()) -> Recipe:
    """`recipe` with the place of each model that it names, and its commit; `folders` hold choices as in `conf/`.

    Raises UserError for a name of no model, or of one without weights.
    """
    for name, commit in MODELS.items():
        value = attrgetter(name)(recipe)
        if not value or value.startswith(SHIPPED):
            continue
        model = model_at(value, name, folders)
        place = place_of(model)
        if place is None:
            raise UserError(f"{name}={value}: this model has no weights; name one that has")
        recipe = _with(recipe, name, place)
        if commit is not None and attrgetter(commit)(recipe) is None and model.path is None:
            recipe = _with(recipe, commit, model.revision)
    return recipe


def require_made(recipe: Recipe) -> None:
    """Raise UserError for a model that does not exist yet, which another recipe is to write first."""
    for name in MODELS:
        value = attrgetter(name)(recipe)
        if value and not Path(resolve(value)).exists() and (how := made_by(value)):
            raise UserError(f"{name}={value}: does not exist yet; {how}")


def _with(recipe: Recipe, key: str, value: str | None) -> Recipe:
    part, _, name = key.partition(".")
    return replace(recipe, **{part: replace(getattr(recipe, part), **{name: value})})


def resolve(where: str) -> str:
    """`where` as a path or hub name that libraries take."""
    if where.startswith(SHIPPED):
        return str(shipped(*where[len(SHIPPED) :].split("/")))
    return home(where)


def short_name(where: str) -> str:
    """`where` without the machine's folders: for model cards, which travel."""
    return where if where.startswith(SHIPPED) or not Path(where).is_absolute() else Path(where).name


def portable(value: Any) -> Any:
    """A recipe as plain values, with file names in place of this machine's folders."""
    if isinstance(value, dict):
        # Words put before or kept in a text may also begin with a slash.
        return {name: part if name in ("prefix", "keep") else portable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [portable(part) for part in value]
    return short_name(value) if isinstance(value, str) else value
