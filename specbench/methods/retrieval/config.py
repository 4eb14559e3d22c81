"""The keys of `draft=retrieval`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TextDraftConfig
from specbench.config.keys import key, require
from specbench.methods.lookup.config import MATCH, MOST_MATCHED

GROW = "add each completion to the store once it is decoded; then the order of the prompts matters"


@dataclass
class RetrievalConfig(TextDraftConfig):
    """Proposes the tokens that most often followed the last tokens in a corpus."""

    kind: str = "retrieval"
    builder: ClassVar[str | None] = "specbench.methods.retrieval.draft:RetrievalBuilder"
    match: int = key(3, MATCH)
    grow: bool = key(False, GROW)
    falls_with_position: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    found_in_text: ClassVar[bool] = True
    matches: ClassVar[bool] = True

    def label(self) -> str:
        return f"{self.kind}-grow" if self.grow else self.kind

    def check(self, key: str) -> None:
        super().check(key)
        require(1 <= self.match <= MOST_MATCHED, f"{key}.match", self.match, f"from 1 to {MOST_MATCHED}")
