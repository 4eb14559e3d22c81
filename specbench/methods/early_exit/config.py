"""The keys of `draft=early-exit`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key
from specbench.config.ranges import require


@dataclass
class EarlyExitConfig(DraftConfig):
    """The target's own first layers."""

    kind: str = "early-exit"
    builder: ClassVar[str | None] = "specbench.methods.early_exit.draft:EarlyExitBuilder"
    layers: int = key(1, "number of the target's first decoder layers that draft")
    inside_target: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        return f"{self.kind}-{self.layers}"

    def check(self, key: str) -> None:
        require(self.layers >= 1, f"{key}.layers", self.layers, "at least 1")
