"""Which learner a recipe trains instead of a model, if any."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel

from specbench.train.blockwise import BlockwiseLearner
from specbench.train.eagle import EagleLearner
from specbench.train.frozen import FrozenTargetLearner, earlier_weights
from specbench.train.look_ahead import LookAheadLearner
from specbench.train.medusa import HydraLearner, MedusaLearner
from specbench.train.places import resolve
from specbench.train.schema import Recipe
from specbench.train.specdec import SpecDecLearner


def make_learner(recipe: Recipe, target: PreTrainedModel, train_set: Dataset) -> FrozenTargetLearner[Any]:
    """What `recipe` trains on `target`."""
    weight = recipe.distill.kl_weight
    match recipe.heads_kind():
        case "medusa":
            return MedusaLearner(target, recipe.heads, weight)
        case "hydra":
            return HydraLearner(target, recipe.heads, weight)
        case "eagle":
            size = recipe.eagle.vocabulary
            kept = None if size is None else _draft_vocabulary(recipe, target, train_set, size)
            return EagleLearner(target, recipe.eagle, weight, kept)
        case "specdec":
            return SpecDecLearner(target, recipe.specdec, weight)
        case "pass":
            return LookAheadLearner(target, recipe.look_ahead, weight)
        case _:
            return BlockwiseLearner(target, recipe.blockwise.heads, recipe.blockwise.hidden, weight)


def _draft_vocabulary(recipe: Recipe, target: PreTrainedModel, train_set: Dataset, size: int) -> list[int]:
    """The most frequent tokens, or the vocabulary of the heads to start from, since their rows belong to it."""
    if recipe.distill.start_from:
        earlier = earlier_weights(Path(resolve(recipe.distill.start_from)))
        if "draft_vocabulary" in earlier:
            return [int(token) for token in earlier["draft_vocabulary"]]
    return _most_frequent(recipe, target, train_set, size)


def _most_frequent(recipe: Recipe, target: PreTrainedModel, train_set: Dataset, size: int) -> list[int]:
    """The `size` tokens that the texts to train on have most often, and the end of a text, in the order of ids."""
    column = "labels" if recipe.task == "seq2seq" else "input_ids"
    counts = Counter(chain.from_iterable(train_set[column]))
    counts[target.config.eos_token_id] = len(train_set) + max(counts.values())
    return sorted(token for token, _ in counts.most_common(size))
