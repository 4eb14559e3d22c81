"""Which learner a recipe trains in the place of a model, if any."""

from __future__ import annotations

from transformers import PreTrainedModel

from specbench.train.blockwise import BlockwiseLearner
from specbench.train.heads import HeadLearner
from specbench.train.medusa import HydraLearner, MedusaLearner
from specbench.train.schema import Recipe


def make_learner(recipe: Recipe, target: PreTrainedModel) -> HeadLearner:
    """The heads that `recipe` trains on `target`."""
    weight = recipe.distill.kl_weight
    match recipe.heads_kind():
        case "medusa":
            return MedusaLearner(target, recipe.heads, weight)
        case "hydra":
            return HydraLearner(target, recipe.heads, weight)
        case _:
            return BlockwiseLearner(target, recipe.blockwise.heads, recipe.blockwise.hidden, weight)
