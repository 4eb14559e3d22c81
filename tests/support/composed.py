"""Experiments and recipes as the command line composes them."""

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf, open_dict

from specbench.compose.to_schema import to_schema
from specbench.compose.unnamed import conf_of_hydra
from specbench.config.catalogue import choice_names
from specbench.config.schema import RunConfig
from specbench.train.recipe_schema import Recipe

SWEEPS = choice_names("experiment")
PARTS = {name for name in SWEEPS if name.startswith(("beyond-mini-", "real"))}  # of beyond-mini, and of real


def compose(name: str, *overrides: str) -> tuple[RunConfig, dict[str, str]]:
    ConfigStore.instance().store(name="run_schema", node=RunConfig)
    with conf_of_hydra():
        whole = hydra.compose("run", overrides=[f"experiment={name}", *overrides], return_hydra_config=True)
    params = OmegaConf.to_container(whole.hydra.sweeper.params or OmegaConf.create({}))
    assert isinstance(params, dict)
    with open_dict(whole):
        del whole["hydra"]  # what is left is the config that a job has
    return to_schema(whole, RunConfig), {str(key): str(value) for key, value in params.items()}


RECIPES = choice_names("recipe")


def composed(name: str, *overrides: str) -> Recipe:
    ConfigStore.instance().store(name="train_schema", node=Recipe)
    with conf_of_hydra():
        recipe = OmegaConf.to_object(hydra.compose("train", [f"recipe={name}", *overrides]))
    assert isinstance(recipe, Recipe)
    return recipe
