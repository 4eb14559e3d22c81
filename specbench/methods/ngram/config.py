"""The keys of `draft=unigram`, `draft=bigram`, `draft=ngram` and `draft=random`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig, TextDraftConfig
from specbench.config.keys import key, require


@dataclass
class UnigramConfig(TextDraftConfig):
    """Add-one counts of tokens."""

    kind: str = "unigram"
    builder: ClassVar[str | None] = "specbench.methods.ngram.draft:NgramBuilder"
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True
    paper: ClassVar[bool] = True

    def longest(self) -> int:
        return 1


@dataclass
class DiscountedConfig(TextDraftConfig):
    """N-gram counts with absolute discounting."""

    discount: float = key(0.75, "D of absolute discounting: the mass that goes to the lower order")
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def longest(self) -> int:
        """Tokens of the longest n-gram."""
        raise NotImplementedError

    def check(self, key: str) -> None:
        super().check(key)
        require(0 < self.discount < 1, f"{key}.discount", self.discount, "between 0 and 1")


@dataclass
class BigramConfig(DiscountedConfig):
    """Counts of pairs of tokens."""

    kind: str = "bigram"
    builder: ClassVar[str | None] = "specbench.methods.ngram.draft:NgramBuilder"
    paper: ClassVar[bool] = True

    def longest(self) -> int:
        return 2


@dataclass
class NgramConfig(DiscountedConfig):
    """Counts of runs of any length."""

    kind: str = "ngram"
    builder: ClassVar[str | None] = "specbench.methods.ngram.draft:NgramBuilder"
    order: int = key(3, "n, the order of the longest n-gram")

    def label(self) -> str:
        return f"{self.order}-gram"

    def longest(self) -> int:
        return self.order

    def check(self, key: str) -> None:
        super().check(key)
        require(1 <= self.order <= 8, f"{key}.order", self.order, "from 1 to 8")


@dataclass
class RandomConfig(DraftConfig):
    """Every token equally likely."""

    kind: str = "random"
    builder: ClassVar[str | None] = "specbench.methods.ngram.draft:RandomBuilder"
    paper: ClassVar[bool] = True
