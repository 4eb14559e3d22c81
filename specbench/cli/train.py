"""`specbench train`: a recipe and its overrides, composed by Hydra, handed to the training room."""

import re
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from specbench.cli.dry_run import DRY_RUN, show
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.compose.hydra_app import launch_one
from specbench.compose.unnamed import store
from specbench.compose.words import value_of
from specbench.errors import UserError
from specbench.train.recipe_checks import check
from specbench.train.recipe_places import require_made, with_places
from specbench.train.recipe_schema import Recipe
from specbench.train.unused import require_used

KINDS = ("seq2seq", "lm")  # values of a recipe's `task`
ABOUT = """
Train a target or a draft; a killed training resumes from its last checkpoint when the same command is given again. The
folder it writes is what target= and draft.path= of `specbench run` take. A draft's alpha is measured on held-out
prompts; the last line is the command that runs it on them.
"""


def main(argv: list[str]) -> int:
    """Run `specbench train` with the words `argv`."""
    line = "recipe=NAME [key=value ...]"
    if argv and re.fullmatch(r"[\w.-]*\w", argv[0]) and not argv[0].startswith("-"):
        raise UserError(f"{argv[0]}: name the recipe as recipe={argv[0]}; 'specbench list recipe' shows all")
    command = read(
        argv,
        Recipe,
        lambda: usage("train", ABOUT, Recipe, line=line, groups=("recipe",), options=DRY_RUN),
        alone=("dry-run",),
    )
    if not any(word.partition("=")[0] == "recipe" for word in command.overrides):
        raise UserError("recipe= is missing: give recipe=NAME; 'specbench list recipe' shows all")
    for kind in KINDS:
        store("recipe_task", kind, {"task": kind}, package="_global_")
    chosen = value_of(command.overrides, "recipe", "")
    given = {word.partition("=")[0].lstrip("+") for word in command.overrides}
    own = [Path(after) for word, after in pairwise(command.switches) if word == "--config-dir"]
    dry = "dry-run" in command.options
    task = partial(only_needs, command.form, given, own) if dry else partial(job, chosen, given, own)
    launch_one(task, Recipe, [*command.switches, *map(_as_key, command.overrides)], "train")
    return 0


def _as_key(word: str) -> str:
    """`task=lm` as Hydra takes it: to Hydra `task` is the group of `conf/task`, to a recipe a plain key."""
    key, _, value = word.partition("=")
    if key.lstrip("+") != "task":
        return word
    if value not in KINDS:
        raise UserError(f"task={value}: must be {' | '.join(KINDS)}")
    return f"+recipe_task={value}"


def only_needs(form: str, given: set[str], own: Sequence[Path], recipe: Recipe) -> None:
    """Print what a training needs. Raises UserError for a recipe that cannot be trained, or a key without use."""
    from specbench.choose.needs import of_training
    from specbench.train.fitting import fitted_to_target

    fitted = check(fitted_to_target(with_places(recipe, own), given))
    require_used(fitted, given)
    require_made(fitted)
    show(form, of_training(fitted))


def job(chosen: str, given: set[str], own: Sequence[Path], recipe: Recipe) -> None:
    """One training of a composed recipe.

    Args:
        chosen: its name in `conf/recipe`.
        given: the keys that the command line sets.
        own: folders with choices of the user's.
        recipe: the recipe.

    Raises:
        UserError: it cannot be trained, or does not read a key that is given.
    """
    from specbench.train.fitting import fitted_to_target
    from specbench.train.next_command import next_command
    from specbench.train.recipe import train

    fitted = fitted_to_target(with_places(recipe, own), given)
    require_used(check(fitted), given)
    print(f"wrote {train(fitted, chosen)}; to measure it:", file=sys.stderr)
    print(next_command(fitted))
