"""`specbench train`: a recipe and its overrides, composed by Hydra, handed to the training room."""

import sys
from functools import partial

from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.compose.hydra_app import launch_one
from specbench.compose.unnamed import store
from specbench.compose.words import value_of
from specbench.errors import UserError
from specbench.train.schema import Recipe

KINDS = ("seq2seq", "lm")  # values of a recipe's `task`
ABOUT = """
Train a target or a draft; a killed training resumes from its last checkpoint when the same command is given again. The
folder it writes is what target.path= and draft.path= of `specbench run` take.
"""


def main(argv: list[str]) -> int:
    """Run `specbench train` with the words `argv`."""
    line = "recipe=NAME [key=value ...]"
    command = read(argv, Recipe, lambda: usage("train", ABOUT, Recipe, line=line, groups=("recipe",)))
    if not any(word.partition("=")[0] == "recipe" for word in command.overrides):
        raise UserError("recipe= is missing: give recipe=NAME; 'specbench list recipe' shows all")
    for kind in KINDS:
        store("recipe_task", kind, {"task": kind}, package="_global_")
    chosen = value_of(command.overrides, "recipe", "")
    given = {word.partition("=")[0].lstrip("+") for word in command.overrides}
    task = partial(job, chosen, given)
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


def job(chosen: str, given: set[str], recipe: Recipe) -> None:
    """One training of a composed recipe: its name in `conf/recipe`, and the keys that the command line sets."""
    from specbench.train.recipe import fitted_to_target, train  # torch is imported only from here on

    print(f"wrote {train(fitted_to_target(recipe, given), chosen)}", file=sys.stderr)
