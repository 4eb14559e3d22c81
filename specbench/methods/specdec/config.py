"""The keys of `draft=specdec`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig


@dataclass
class SpecDecConfig(TrainedConfig):
    """A shallow decoder on the target's encoder that drafts all tokens in one step (SpecDec)."""

    kind: str = "specdec"
    builder: ClassVar[str | None] = "specbench.methods.specdec.draft:SpecDecBuilder"
    learner: ClassVar[str] = "specbench.methods.specdec.train:SpecDecLearner"
    recipe: ClassVar[str] = "specdec"
    at_once: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = False
    scores_children: ClassVar[bool] = False
    first_alone: ClassVar[bool] = False
