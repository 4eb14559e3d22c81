"""The keys of `draft=lookahead`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key, require


@dataclass
class LookaheadConfig(DraftConfig):
    """N-grams of the target's own guesses."""

    kind: str = "lookahead"
    builder: ClassVar[str | None] = "specbench.methods.lookahead.draft:LookaheadBuilder"
    window: int = key(5, "W: positions ahead that the target guesses in each pass")
    ngram: int = key(4, "N: tokens of an n-gram; a proposal has at most N - 1 tokens")
    guesses: int = key(5, "G: maximum number of n-grams that a pass verifies")
    inside_target: ClassVar[bool] = True
    falls_with_position: ClassVar[bool] = True
    own_tree: ClassVar[bool] = True

    def objection_to_probe(self) -> str | None:
        return "what it finds depends on the passes before, which a probe does not have; give a number"

    def objection_to_tree(self) -> str | None:
        return "its n-grams are a tree already"

    def check(self, key: str) -> None:
        require(1 <= self.window <= 32, f"{key}.window", self.window, "from 1 to 32")
        require(2 <= self.ngram <= 8, f"{key}.ngram", self.ngram, "from 2 to 8")
        require(1 <= self.guesses <= 32, f"{key}.guesses", self.guesses, "from 1 to 32")
