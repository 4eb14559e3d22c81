"""A greedy draft at T > 0: Algorithm 1 with a one-hot q.

Lossless. A token is accepted with p at q's argmax, whatever the draft's own probability of it.

Shapes: L positions, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.exact import AcceptExact
from specbench.config.rule import RuleConfig
from specbench.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.sampling import Sampling


@dataclass
class OneHotConfig(RuleConfig):
    """A greedy draft."""

    name: ClassVar[str] = "onehot"
    about: ClassVar[str] = (
        "A greedy draft at T > 0: q's argmax is accepted with probability p; lossless, α is the mean of p at "
        "q's argmax."
    )
    instead_on_trees: ClassVar[str | None] = "accept=exact tree.children=fixed"

    def verification(self, sampling: Sampling) -> Verification:
        return Verification(accept_onehot, sampling)


class AcceptOneHot(AcceptExact):
    """Algorithm 1 for tokens that are drafted by argmax of q at every temperature."""

    greedy_draft: ClassVar[bool] = True
    own_alpha: ClassVar[str | None] = "onehot"

    def drafted_LV(self, q_LV: Tensor) -> Tensor:
        return greedy_rows(q_LV)


accept_onehot = AcceptOneHot()


def greedy_rows(q_LV: Tensor) -> Tensor:
    """One-hot rows [L, V] at the likeliest token of q, the first of equal tokens; none for a row without mass."""
    highest_L1, index_L1 = q_LV.max(-1, keepdim=True)
    return torch.zeros_like(q_LV).scatter_(-1, index_L1, (highest_L1 > 0).to(q_LV.dtype))
