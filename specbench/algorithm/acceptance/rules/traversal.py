"""Traversal verification (Weng et al. 2025), the block verification of trees (`acceptance.tree_rules`): lossless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.config.rule import RuleConfig

if TYPE_CHECKING:
    from specbench.sampling import Sampling


@dataclass
class TraversalConfig(RuleConfig):
    """Traversal verification."""

    name: ClassVar[str] = "traversal"
    about: ClassVar[str] = (
        "Traversal verification (Weng et al. 2025), for trees: lossless, from the leaves up; on a chain it "
        "is block verification."
    )
    on_trees: ClassVar[bool] = True
    on_chain: ClassVar[str | None] = "block"

    def verification(self, sampling: Sampling) -> Verification:
        return Verification(accept_block, sampling)
