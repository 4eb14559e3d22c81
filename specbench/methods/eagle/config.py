"""The keys of `draft=eagle` and `draft=eagle3`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig


@dataclass
class EagleConfig(TrainedConfig):
    """A layer that predicts the target's features (EAGLE)."""

    kind: str = "eagle"
    builder: ClassVar[str | None] = "specbench.methods.eagle.draft:EagleBuilder"
    learner: ClassVar[str] = "specbench.methods.eagle.train:EagleLearner"
    recipe: ClassVar[str] = "eagle"


@dataclass
class Eagle3Config(TrainedConfig):
    """A layer that reads three depths of the target (EAGLE-3)."""

    kind: str = "eagle3"
    builder: ClassVar[str | None] = "specbench.methods.eagle.draft:EagleBuilder"
    learner: ClassVar[str] = "specbench.methods.eagle.train:EagleLearner"
    recipe: ClassVar[str] = "eagle3"
