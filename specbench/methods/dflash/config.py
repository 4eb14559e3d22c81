"""The keys of `draft=dflash`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig


@dataclass
class DflashConfig(TrainedConfig):
    """A few layers on the target's states that draft a whole block in one forward pass (DFlash)."""

    kind: str = "dflash"
    builder: ClassVar[str | None] = "specbench.methods.dflash.draft:BlockBuilder"
    learner: ClassVar[str] = "specbench.methods.dflash.train:BlockLearner"
    recipe: ClassVar[str] = "dflash"
    at_once: ClassVar[bool] = True
