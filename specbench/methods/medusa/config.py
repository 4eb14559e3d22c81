"""The keys of `draft=medusa`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig


@dataclass
class MedusaConfig(TrainedConfig):
    """Medusa's heads on the target's last state."""

    kind: str = "medusa"
    builder: ClassVar[str | None] = "specbench.methods.medusa.draft:MedusaBuilder"
    learner: ClassVar[str] = "specbench.methods.head_learners:MedusaLearner"
    recipe: ClassVar[str] = "medusa"
    at_once: ClassVar[bool] = True
    reads_last_token: ClassVar[bool] = False
