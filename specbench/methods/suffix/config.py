"""The keys of `draft=suffix`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import between, key
from specbench.methods.retrieval.config import GROW


@dataclass
class SuffixConfig(DraftConfig):
    """Proposes what most often followed the last tokens in the prompt, this completion and earlier completions."""

    kind: str = "suffix"
    builder: ClassVar[str | None] = "specbench.methods.suffix.draft:SuffixBuilder"
    depth: int = key(24, "the longest run of tokens in the trie, a match and what follows it", between(2, 64))
    factor: float = key(1.0, "tokens proposed at most for each matched token", between(0.1, 64))
    min_probability: float = key(
        0.1, "a proposal ends where the product of its tokens' shares falls below this", between(0, 1)
    )
    grow: bool = key(False, GROW)
    falls_with_position: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    found_in_text: ClassVar[bool] = True
    matches: ClassVar[bool] = True

    def label(self) -> str:
        return self.kind if self.grow else f"{self.kind}-local"
