"""Which learner a recipe trains instead of a model."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel

from specbench.config.draft import TrainedConfig, named
from specbench.config.drafts import DRAFT_KINDS
from specbench.train.frozen import FrozenTargetLearner
from specbench.train.schema import Recipe


def make_learner(recipe: Recipe, target: PreTrainedModel, train_set: Dataset) -> FrozenTargetLearner[Any]:
    """What `recipe` trains on `target`: the learner that the config of its kind of draft names."""
    kind = DRAFT_KINDS[recipe.heads_kind() or "blockwise"]
    assert issubclass(kind, TrainedConfig)
    learner: type[FrozenTargetLearner[Any]] = named(kind.learner)
    return learner.of(target, recipe, train_set)
