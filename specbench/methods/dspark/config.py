"""The keys of `draft=dspark`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig
from specbench.config.keys import key, require


@dataclass
class DsparkConfig(TrainedConfig):
    """DFlash's network; each token of a block is drawn given the one before it (DSpark)."""

    kind: str = "dspark"
    builder: ClassVar[str | None] = "specbench.methods.dspark.draft:DsparkBuilder"
    learner: ClassVar[str] = "specbench.methods.dflash.train:BlockLearner"
    recipe: ClassVar[str] = "dspark"
    confidence: float | None = key(
        None, "a proposal ends before the first token whose predicted acceptance is below this"
    )
    at_once: ClassVar[bool] = True

    def confidence_bound(self) -> float | None:
        return self.confidence

    def objection_to_probe(self) -> str | None:
        return None if self.confidence is None else "where draft.confidence ends proposals, give a number or heuristic"

    def check(self, key: str) -> None:
        bound = self.confidence
        require(bound is None or 0 < bound <= 1, f"{key}.confidence", bound, "above 0 and at most 1, or null")
        super().check(key)
