"""The keys of `draft=early-exit`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key
from specbench.config.ranges import require

REUSE = False
OF_REUSE = "verification begins with the states of the layers that draft and target share (docs/drafts.md)"


def _unusual(reuse: bool) -> str:
    """What a label says of draft.reuse where it is not the default."""
    return "" if reuse == REUSE else "-reuse"


@dataclass
class EarlyExitConfig(DraftConfig):
    """The target's own first layers."""

    kind: str = "early-exit"
    builder: ClassVar[str | None] = "specbench.methods.early_exit.draft:EarlyExitBuilder"
    layers: int = key(1, "number of the target's first decoder layers that draft")
    reuse: bool = key(REUSE, OF_REUSE)
    inside: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        return f"{self.kind}-{self.layers}{_unusual(self.reuse)}"

    def check(self, key: str) -> None:
        require(self.layers >= 1, f"{key}.layers", self.layers, "at least 1")
