"""A draft that is a model of its own."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key
from specbench.config.model import ModelConfig, check_model, name_of
from specbench.config.ranges import require


@dataclass
class ModelDraftConfig(DraftConfig, ModelConfig):
    """A model that shares the target's vocabulary."""

    kind: str = "model"
    confidence: float | None = key(None, "a proposal ends after a token whose own q is below this")
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True
    paper: ClassVar[bool] = True

    def label(self) -> str:
        return name_of(self)

    def confidence_bound(self) -> float | None:
        return self.confidence

    def objection_to_probe(self) -> str | None:
        return None if self.confidence is None else "where draft.confidence ends proposals, give a number or heuristic"

    def check(self, key: str) -> None:
        confidence = self.confidence
        require(
            confidence is None or 0 < confidence <= 1,
            f"{key}.confidence", confidence, "above 0 and at most 1, or null",
        )  # fmt: skip
        check_model(key, self)
