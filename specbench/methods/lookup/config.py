"""The keys of `draft=lookup`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key, require

MATCH = "the longest run of tokens to search for"
MOST_MATCHED = 32


@dataclass
class LookupConfig(DraftConfig):
    """Copies the tokens that followed an earlier occurrence of the last tokens."""

    kind: str = "lookup"
    builder: ClassVar[str | None] = "specbench.methods.lookup.draft:LookupBuilder"
    match: int = key(3, MATCH)
    falls_with_position: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    found_in_text: ClassVar[bool] = True
    matches: ClassVar[bool] = True

    def check(self, key: str) -> None:
        require(1 <= self.match <= MOST_MATCHED, f"{key}.match", self.match, f"from 1 to {MOST_MATCHED}")
