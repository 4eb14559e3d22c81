"""Drafts without weights: counts of n-grams, tokens copied from the text or from a corpus, and chance."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key
from specbench.config.ranges import require

MATCH = "the longest run of tokens to search for"
MOST_MATCHED = 32


@dataclass
class TextDraftConfig(DraftConfig):
    """A draft fitted on training text."""

    corpus: str | None = key(
        None, "a file or folder of text to fit on, with the task's fields; unset: the task's training text"
    )

    def check(self, key: str) -> None:
        require(
            self.corpus is None or Path(self.corpus).exists(),
            f"{key}.corpus", self.corpus, "a file or folder; there is none of that name",
        )  # fmt: skip


@dataclass
class UnigramConfig(TextDraftConfig):
    """Add-one counts of tokens."""

    kind: str = "unigram"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.from_text:NgramBuilder"
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
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.from_text:NgramBuilder"
    paper: ClassVar[bool] = True

    def longest(self) -> int:
        return 2


@dataclass
class NgramConfig(DiscountedConfig):
    """Counts of runs of any length."""

    kind: str = "ngram"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.from_text:NgramBuilder"
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
    builder: ClassVar[str | None] = "specbench.runs.draft_builders:RandomBuilder"
    paper: ClassVar[bool] = True


@dataclass
class LookupConfig(DraftConfig):
    """Copies the tokens that followed an earlier occurrence of the last tokens."""

    kind: str = "lookup"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders:LookupBuilder"
    match: int = key(3, MATCH)
    falls: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    finds: ClassVar[bool] = True

    def check(self, key: str) -> None:
        require(1 <= self.match <= MOST_MATCHED, f"{key}.match", self.match, f"from 1 to {MOST_MATCHED}")


@dataclass
class RetrievalConfig(TextDraftConfig):
    """Proposes the tokens that most often followed the last tokens in a corpus."""

    kind: str = "retrieval"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders.from_text:RetrievalBuilder"
    match: int = key(3, MATCH)
    grow: bool = key(
        False, "add each completion to the store once it is decoded; then the order of the prompts matters"
    )
    falls: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    finds: ClassVar[bool] = True

    def label(self) -> str:
        return f"{self.kind}-grow" if self.grow else self.kind

    def check(self, key: str) -> None:
        super().check(key)
        require(1 <= self.match <= MOST_MATCHED, f"{key}.match", self.match, f"from 1 to {MOST_MATCHED}")
