"""The keys of `draft=layer-skip` and `draft=early-exit`."""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import fresh, key, require
from specbench.errors import UserError

AUTO = "auto"
MOST_NAMED = 4
NAMED = re.compile(r"(attn|cross|mlp|layer)\d+")


@dataclass
class LayerSkipConfig(DraftConfig):
    """The target without some of its sublayers."""

    kind: str = "layer-skip"
    builder: ClassVar[str | None] = "specbench.methods.target_layers.draft:LayerSkipBuilder"
    skip: list[str] = fresh(
        list,
        "sublayers to skip, N from 0: attnN, mlpN, crossN (encoder-decoder), layerN; [auto]: recommend searches",
    )
    inside_target: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        """The skipped sublayers, or, if they are many, their number and a digest: labels are parts of file names."""
        if len(self.skip) <= MOST_NAMED:
            return "-".join([self.kind, *self.skip])
        digest = sha256(",".join(sorted(self.skip)).encode()).hexdigest()[:4]
        return f"{self.kind}-{len(self.skip)}-{digest}"

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
class EarlyExitConfig(DraftConfig):
    """The target's own first layers."""

    kind: str = "early-exit"
    builder: ClassVar[str | None] = "specbench.methods.target_layers.draft:EarlyExitBuilder"
    layers: int = key(1, "number of the target's first decoder layers that draft")
    inside_target: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        return f"{self.kind}-{self.layers}"

    def check(self, key: str) -> None:
        require(self.layers >= 1, f"{key}.layers", self.layers, "at least 1")
