"""The keys of the draft, `draft=repeat draft.times=2`. Imports nothing heavy: `specbench --help` reads it."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key, require


@dataclass
class RepeatConfig(DraftConfig):
    """The last token again."""

    kind: str = "repeat"
    times: int = key(1, "how often the last token is repeated")

    builder: ClassVar[str] = "specbench_example.draft:RepeatBuilder"

    def check(self, key: str) -> None:
        require(self.times >= 1, f"{key}.times", self.times, "at least 1")
