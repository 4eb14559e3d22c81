"""The keys of `draft=hydra`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig


@dataclass
class HydraConfig(TrainedConfig):
    """Hydra's heads on the target's last state and on the tokens after it."""

    kind: str = "hydra"
    builder: ClassVar[str | None] = "specbench.methods.hydra.draft:HydraBuilder"
    learner: ClassVar[str] = "specbench.methods.head_learners:HydraLearner"
    recipe: ClassVar[str] = "hydra"
