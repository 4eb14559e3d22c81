"""`specbench train`: a recipe and its overrides, composed by Hydra, handed to the training room."""

import sys

from omegaconf import DictConfig, OmegaConf

from specbench.cli.hydra_app import launch_one
from specbench.config import conf_dir
from specbench.train.schema import Recipe

HELP = """usage: specbench train recipe=NAME data.path=[FILE,...] [key=value ...]

Train a target or a draft; a killed training goes on from its last checkpoint when the same command is given again.
The folder it writes is what target.path= and draft.path= of `specbench run` take.

  recipe=NAME       {recipes}
  data.path=[F,G]   JSON lines (.jsonl, .jsonl.gz), plain text, or folders of either;
                    data.hub=OWNER/NAME data.subset=X for the hub
  data.keep={{src:[a,b]}}   only rows whose field has one of these values
  data.exclude=[F]  held-out sentences: they and near copies are not trained on
  data.test={{NAME:F}}  measured at the end (BLEU; alpha of a draft) and written into the model card
  distill.target=FOLDER  the target that a draft learns from
  optim.max_steps=N optim.lr=X optim.batch_size=N  save_steps=N  seed=N  threads=N
  output=FOLDER     default models/NAME
"""


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        recipes = ", ".join(sorted(file.stem for file in (conf_dir() / "recipe").glob("*.yaml")))
        print(HELP.format(recipes=recipes))
        return 0
    launch_one(job, "train", Recipe, argv, "train")
    return 0


def job(composed: DictConfig) -> None:
    """One training of a composed recipe."""
    recipe = OmegaConf.to_object(composed)
    assert isinstance(recipe, Recipe)
    from specbench.train.recipe import train  # torch is imported only from here on

    print(f"wrote {train(recipe)}", file=sys.stderr)
