"""The keys of `draft=dspark`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig


@dataclass
class DsparkConfig(TrainedConfig):
    """DFlash's network; each token of a block is drawn given the one before it (DSpark)."""

    kind: str = "dspark"
    builder: ClassVar[str | None] = "specbench.methods.dflash.draft:BlockBuilder"
    learner: ClassVar[str] = "specbench.methods.dflash.train:BlockLearner"
    recipe: ClassVar[str] = "dspark"
    at_once: ClassVar[bool] = True
