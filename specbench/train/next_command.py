"""The command that measures what a training wrote, which ends its output."""

from __future__ import annotations

import shlex
from pathlib import Path

from specbench.config.places import OF_MODELS, home
from specbench.train.recipe_schema import Recipe

PROMPTS = "held-out.jsonl"  # beside the weights: what the next command decodes


def next_command(recipe: Recipe) -> str:
    """The command that measures the weights that `recipe` wrote, on its held-out prompts if it has any."""
    output = Path(home(recipe.output))
    own = _word_of(str(output))
    words = ["specbench", "run"]
    if recipe.distill.target is None:
        words += [f"target={own}", "draft=lookup"]
    else:
        commit = f"@{recipe.distill.revision}" if recipe.distill.revision else ""
        words.append(f"target={_word_of(recipe.distill.target)}{commit}")
        words += [f"draft={recipe.kind}", f"draft.path={own}"] if recipe.on_frozen_target else [f"draft={own}"]
    if (output / PROMPTS).is_file():
        words += ["task=prompts", f"task.path={output / PROMPTS}"]
    return shlex.join(words)


def _word_of(place: str) -> str:
    """A place as `target=` and `draft=` take it."""
    if place.startswith(OF_MODELS):
        return place.removeprefix(OF_MODELS)
    return place if "/" in place else f"./{place}"
