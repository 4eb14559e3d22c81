"""`specbench train`: a recipe and its overrides, composed by Hydra, handed to the training room."""

import sys

from omegaconf import DictConfig, OmegaConf

from specbench.cli.hydra_app import launch_one
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.train.schema import Recipe

ABOUT = """
Train a target or a draft; a killed training resumes from its last checkpoint when the same command is given again. The
folder it writes is what target.path= and draft.path= of `specbench run` take.
"""


def main(argv: list[str]) -> int:
    """Run `specbench train` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    if "--help" in argv or "-h" in argv:
        print(usage("train", ABOUT, Recipe, line="recipe=NAME [key=value ...]", groups=("recipe",)))
        return 0
    launch_one(job, "train", Recipe, read(argv, Recipe).argv, "train")
    return 0


def job(composed: DictConfig) -> None:
    """One training of a composed recipe."""
    recipe = OmegaConf.to_object(composed)
    assert isinstance(recipe, Recipe)
    from specbench.train.recipe import train  # torch is imported only from here on

    print(f"wrote {train(recipe)}", file=sys.stderr)
