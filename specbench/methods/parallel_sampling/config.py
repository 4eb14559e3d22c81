"""The keys of `draft=pass`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig


@dataclass
class ParallelConfig(TrainedConfig):
    """Look-ahead embeddings that the target reads (PaSS)."""

    kind: str = "pass"
    builder: ClassVar[str | None] = "specbench.methods.parallel_sampling.draft:ParallelBuilder"
    learner: ClassVar[str] = "specbench.methods.parallel_sampling.train:LookAheadLearner"
    recipe: ClassVar[str] = "pass"
    reads_last_token: ClassVar[bool] = False
    grows_trees: ClassVar[bool] = False
    scores_children: ClassVar[bool] = False

    def objection_to_part(self) -> str | None:
        return "the target reads its look-ahead positions in the pass that verifies its own proposals"
