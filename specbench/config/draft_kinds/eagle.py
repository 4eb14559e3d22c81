"""EAGLE and EAGLE-3: a layer on the target's features."""

from dataclasses import dataclass, replace
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.model import ModelConfig, check_model, name_of
from specbench.errors import UserError


@dataclass
class EagleConfig(DraftConfig, ModelConfig):
    """A layer that predicts the target's features (EAGLE)."""

    kind: str = "eagle"
    inside: ClassVar[bool] = True
    falls: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        own = None if self.name == self.kind else self.name
        if self.path is not None:
            return f"{self.kind}-{name_of(replace(self, name=own))}"
        return own or self.kind

    def objection_to_probe(self) -> str | None:
        return (
            "its probe sees the first drafted token alone, and those after it agree less; with "
            f"draft={self.kind} give a number or heuristic"
        )

    def check(self, key: str) -> None:
        if self.path is None and self.shipped is None:
            raise UserError(f"{key}.path is not set: give the folder that `specbench train recipe={self.kind}` wrote")
        check_model(key, self)


@dataclass
class Eagle3Config(EagleConfig):
    """A layer that reads three depths of the target (EAGLE-3)."""

    kind: str = "eagle3"
