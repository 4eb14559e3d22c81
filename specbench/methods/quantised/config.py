"""The keys of `draft=quantised`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key, require


@dataclass
class QuantisedConfig(DraftConfig):
    """The target's own weights in 8 or 4 bits. Its α is measured, its cost is simulated."""

    kind: str = "quantised"
    builder: ClassVar[str | None] = "specbench.methods.quantised.draft:QuantisedBuilder"
    bits: int = key(8, "bits of a weight, 8 (a scale for each output) or 4 (a scale for 32 inputs of an output)")
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        """Tables name it with its label, so that no c of it is read as that of a quantised model."""
        return f"{self.kind}-{self.bits}-simulated-cost"

    def check(self, key: str) -> None:
        require(self.bits in (4, 8), f"{key}.bits", self.bits, "4 | 8")
