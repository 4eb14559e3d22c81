"""The keys of `draft=pard`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig

FIELD = "pard_token"  # of config.json: the mask token


@dataclass
class PardConfig(TrainedConfig):
    """A model that reads mask tokens in place of tokens not known yet, and so drafts in one forward pass (PARD)."""

    kind: str = "pard"
    builder: ClassVar[str | None] = "specbench.methods.pard.draft:PardBuilder"
    learner: ClassVar[str] = "specbench.methods.pard.train:PardLearner"
    recipe: ClassVar[str] = "pard"
    inside_target: ClassVar[bool] = False
    first_alone: ClassVar[bool] = False
    at_once: ClassVar[bool] = True
