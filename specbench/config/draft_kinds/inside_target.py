"""Drafts inside the target: on its first layers, or on its last state."""

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import fresh, key
from specbench.config.model import ModelConfig, check_model, name_of
from specbench.config.ranges import require
from specbench.errors import UserError

AUTO = "auto"
NAMED = re.compile(r"(attn|cross|mlp|layer)\d+")


@dataclass
class EarlyExitConfig(DraftConfig):
    """The target's own first layers."""

    kind: str = "early-exit"
    layers: int = key(1, "how many of the target's own first decoder layers draft")
    inside: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        return f"{self.kind}-{self.layers}"

    def check(self, key: str) -> None:
        require(self.layers >= 1, f"{key}.layers", self.layers, "at least 1")


@dataclass
class LayerSkipConfig(DraftConfig):
    """The target without some of its sublayers."""

    kind: str = "layer-skip"
    skip: list[str] = fresh(
        list,
        "the sublayers to skip: attnN, mlpN, of encoder-decoders crossN, layerN; [auto]: recommend searches for them",
    )
    inside: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        return "-".join([self.kind, *self.skip])

    @property
    def searches(self) -> bool:
        """Whether the sublayers are to be found by a search."""
        return self.skip == [AUTO]

    def check(self, key: str) -> None:
        if not self.skip:
            raise UserError(
                f"{key}.skip=[]: nothing is skipped; give sublayers, as {key}.skip=[mlp1,attn2], or have "
                f"`specbench recommend {key}=layer-skip '{key}.skip=[{AUTO}]'` search for them"
            )
        for name in self.skip:
            require(
                self.searches or NAMED.fullmatch(name) is not None,
                f"{key}.skip", f"[{','.join(self.skip)}]", f"a list of attnN, crossN, mlpN, layerN, or [{AUTO}]",
            )  # fmt: skip


@dataclass
class BlockwiseConfig(DraftConfig, ModelConfig):
    """Heads on the target's last state."""

    kind: str = "blockwise"
    inside: ClassVar[bool] = True
    falls: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        if self.path is None:
            return name_of(self)
        own = None if self.name == self.kind else self.name
        return f"{self.kind}-{name_of(replace(self, name=own))}"

    def objection_to_probe(self) -> str | None:
        return (
            "its probe sees the first of the heads alone, and those after it agree less; with draft=blockwise give a "
            "number or heuristic"
        )

    def check(self, key: str) -> None:
        if self.path is None and self.shipped is None:
            raise UserError(f"{key}.path is not set: give the folder that `specbench train recipe=blockwise` wrote")
        check_model(key, self)
