"""Drafts trained for one target: heads on its last state, EAGLE's layer on its features, inputs that it reads."""

from dataclasses import dataclass, replace
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.model import ModelConfig, check_model, name_of
from specbench.errors import UserError


@dataclass
class TrainedConfig(DraftConfig, ModelConfig):
    """Weights trained for one target.

    recipe: the recipe that a caller without weights is shown.
    learner: what trains them, a `train.frozen.FrozenTargetLearner` as 'module:Class'.
    """

    inside: ClassVar[bool] = True
    falls: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True
    first_alone: ClassVar[bool] = True
    recipe: ClassVar[str]
    learner: ClassVar[str]

    def label(self) -> str:
        own = None if self.name == self.kind else self.name
        if self.path is not None or self.hub is not None:
            return f"{self.kind}-{name_of(replace(self, name=own))}"
        return own or self.kind

    def check(self, key: str) -> None:
        if self.path is None and self.hub is None and self.shipped is None:
            raise UserError(f"{key}.path is not set: give the folder that `specbench train recipe={self.recipe}` wrote")
        check_model(key, self)


@dataclass
class BlockwiseConfig(TrainedConfig):
    """Heads on the target's last state."""

    kind: str = "blockwise"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.inside_target:BlockwiseBuilder"
    learner: ClassVar[str] = "specbench.train.blockwise:BlockwiseLearner"
    recipe: ClassVar[str] = "blockwise"
    at_once: ClassVar[bool] = True


@dataclass
class MedusaConfig(TrainedConfig):
    """Medusa's heads on the target's last state."""

    kind: str = "medusa"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.inside_target:MedusaBuilder"
    learner: ClassVar[str] = "specbench.train.medusa:MedusaLearner"
    recipe: ClassVar[str] = "medusa"
    at_once: ClassVar[bool] = True


@dataclass
class HydraConfig(TrainedConfig):
    """Hydra's heads on the target's last state and on the tokens after it."""

    kind: str = "hydra"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.inside_target:HydraBuilder"
    learner: ClassVar[str] = "specbench.train.medusa:HydraLearner"
    recipe: ClassVar[str] = "hydra"


@dataclass
class EagleConfig(TrainedConfig):
    """A layer that predicts the target's features (EAGLE)."""

    kind: str = "eagle"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.eagle:EagleBuilder"
    learner: ClassVar[str] = "specbench.train.eagle:EagleLearner"
    recipe: ClassVar[str] = "eagle"


@dataclass
class Eagle3Config(TrainedConfig):
    """A layer that reads three depths of the target (EAGLE-3)."""

    kind: str = "eagle3"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.eagle:EagleBuilder"
    learner: ClassVar[str] = "specbench.train.eagle:EagleLearner"
    recipe: ClassVar[str] = "eagle3"


@dataclass
class SpecDecConfig(TrainedConfig):
    """A shallow decoder on the target's encoder that drafts all tokens in one step (SpecDec)."""

    kind: str = "specdec"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.specdec:SpecDecBuilder"
    learner: ClassVar[str] = "specbench.train.specdec:SpecDecLearner"
    recipe: ClassVar[str] = "specdec"
    at_once: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = False
    scores_children: ClassVar[bool] = False
    first_alone: ClassVar[bool] = False


@dataclass
class ParallelConfig(TrainedConfig):
    """Look-ahead embeddings that the target reads (PaSS)."""

    kind: str = "pass"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.inside_target:ParallelBuilder"
    learner: ClassVar[str] = "specbench.train.look_ahead:LookAheadLearner"
    recipe: ClassVar[str] = "pass"
    grows_trees: ClassVar[bool] = False
    scores_children: ClassVar[bool] = False

    def objection_to_part(self) -> str | None:
        return "the target reads its look-ahead positions in the pass that verifies its own proposals"
