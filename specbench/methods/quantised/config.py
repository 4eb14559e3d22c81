"""The keys of `draft=quantised`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key, require


@dataclass
class QuantisedConfig(DraftConfig):
    """The target's own weights in 8 or 4 bits, which engine=native reads; elsewhere its cost is simulated."""

    kind: str = "quantised"
    builder: ClassVar[str | None] = "specbench.methods.quantised.draft:QuantisedBuilder"
    bits: int = key(8, "bits of a weight, 8 or 4; 32 inputs of an output share a scale")
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True
    costs_on: ClassVar[str | None] = "native"

    def label(self) -> str:
        return f"{self.kind}-{self.bits}"

    def check(self, key: str) -> None:
        require(self.bits in (4, 8), f"{key}.bits", self.bits, "4 | 8")
