"""Drafts that are the target itself: its first layers, some of its sublayers, its own guesses."""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import fresh, key
from specbench.config.ranges import require
from specbench.errors import UserError

AUTO = "auto"
MOST_NAMED = 4
NAMED = re.compile(r"(attn|cross|mlp|layer)\d+")

REUSE = False
OF_REUSE = "verification begins with the states of the layers that draft and target share (docs/drafts.md)"


def _unusual(reuse: bool) -> str:
    """What a label says of draft.reuse where it is not the default."""
    return "" if reuse == REUSE else "-reuse"


@dataclass
class EarlyExitConfig(DraftConfig):
    """The target's own first layers."""

    kind: str = "early-exit"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.inside_target:EarlyExitBuilder"
    layers: int = key(1, "number of the target's first decoder layers that draft")
    reuse: bool = key(REUSE, OF_REUSE)
    inside: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        return f"{self.kind}-{self.layers}{_unusual(self.reuse)}"

    def check(self, key: str) -> None:
        require(self.layers >= 1, f"{key}.layers", self.layers, "at least 1")


@dataclass
class LayerSkipConfig(DraftConfig):
    """The target without some of its sublayers."""

    kind: str = "layer-skip"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.inside_target:LayerSkipBuilder"
    skip: list[str] = fresh(
        list,
        "sublayers to skip, N from 0: attnN, mlpN, crossN (encoder-decoder), layerN; [auto]: recommend searches",
    )
    reuse: bool = key(REUSE, OF_REUSE)
    inside: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        """Of many sublayers how many there are, and a digest of which: labels are parts of file names."""
        if len(self.skip) <= MOST_NAMED:
            return "-".join([self.kind, *self.skip]) + _unusual(self.reuse)
        digest = sha256(",".join(sorted(self.skip)).encode()).hexdigest()[:4]
        return f"{self.kind}-{len(self.skip)}-{digest}{_unusual(self.reuse)}"

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
class LookaheadConfig(DraftConfig):
    """N-grams of the target's own guesses."""

    kind: str = "lookahead"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.inside_target:LookaheadBuilder"
    window: int = key(5, "W: positions ahead that the target guesses in each pass")
    ngram: int = key(4, "N: tokens of an n-gram; a proposal has at most N - 1 tokens")
    guesses: int = key(5, "G: the most n-grams that a pass verifies")
    inside: ClassVar[bool] = True
    falls: ClassVar[bool] = True
    own_tree: ClassVar[bool] = True

    def objection_to_probe(self) -> str | None:
        return "what it finds depends on the passes before, which a probe does not have; give a number"

    def objection_to_tree(self) -> str | None:
        return "its n-grams are a tree already"

    def check(self, key: str) -> None:
        require(1 <= self.window <= 32, f"{key}.window", self.window, "from 1 to 32")
        require(2 <= self.ngram <= 8, f"{key}.ngram", self.ngram, "from 2 to 8")
        require(1 <= self.guesses <= 32, f"{key}.guesses", self.guesses, "from 1 to 32")
