"""The keys of `draft=random`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig


@dataclass
class RandomConfig(DraftConfig):
    """Every token equally likely."""

    kind: str = "random"
    builder: ClassVar[str | None] = "specbench.methods.random.draft:RandomBuilder"
    paper: ClassVar[bool] = True
