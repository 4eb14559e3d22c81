"""The keys of `draft=peagle`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig


@dataclass
class PEagleConfig(TrainedConfig):
    """Decoder layers that read three depths of the target and draft all tokens in one forward pass (P-EAGLE)."""

    kind: str = "peagle"
    builder: ClassVar[str | None] = "specbench.methods.peagle.draft:PEagleBuilder"
    learner: ClassVar[str] = "specbench.methods.peagle.train:PEagleLearner"
    recipe: ClassVar[str] = "peagle"
    at_once: ClassVar[bool] = True
