"""The keys of `draft=blockwise`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig


@dataclass
class BlockwiseConfig(TrainedConfig):
    """Heads on the target's last state."""

    kind: str = "blockwise"
    builder: ClassVar[str | None] = "specbench.methods.blockwise.draft:BlockwiseBuilder"
    learner: ClassVar[str] = "specbench.methods.head_learners:BlockwiseLearner"
    recipe: ClassVar[str] = "blockwise"
    at_once: ClassVar[bool] = True
    reads_last_token: ClassVar[bool] = False
