"""Strict match: draw the target's tokens, and accept draft tokens as long as they are equal.

Lossless for any draft, since each emitted token is a draw from p. Drafted with q, a token is accepted with probability
sum_x p(x) q(x), never above Algorithm 1's sum_x min(p(x), q(x)); drafted greedily, with p at q's argmax, as Algorithm 1
does for a one-hot q.

Shapes: G drafted tokens, L positions, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import ChainRule, Verification, leading
from specbench.config.rule import RuleConfig
from specbench.kernels.rows import RuleInC
from specbench.kernels.structures import Kind
from specbench.sampling import drawn, uniforms

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.algorithm.acceptance.base import Numbers
    from specbench.sampling import Sampling


@dataclass
class MatchConfig(RuleConfig):
    """Strict match."""

    name: ClassVar[str] = "match"
    about: ClassVar[str] = (
        "Strict match: a draft token is accepted where the target draws the same token; lossless, α is the "
        "mean of Σ pq."
    )
    instead_on_trees: ClassVar[str | None] = "accept=exact tree.children=fixed"

    def verification(self, sampling: Sampling) -> Verification:
        return Verification(accept_match, sampling)


class AcceptMatch(ChainRule):
    """Draw the target's token at every position; accept a drafted token while both are equal.

    The next token is the first draw that differs, or the draw after the last draft token. q has no effect.
    """

    by_argmax: ClassVar[bool] = True
    own_alpha: ClassVar[str | None] = "match"
    numbers_beforehand: ClassVar[bool] = True
    draws_at_each: ClassVar[bool] = True

    @property
    def in_c(self) -> RuleInC:
        return RuleInC(Kind.MATCH)

    def drafted_LV(self, q_LV: Tensor) -> Tensor:
        return q_LV

    def decide(
        self, p_GV: Tensor, q_GV: Tensor, drafted_G: Tensor, count: Tensor | int, generator: Numbers
    ) -> tuple[Tensor, Tensor]:
        rows_GV = p_GV[: len(drafted_G) + 1]
        drawn_G = drawn(rows_GV, uniforms(len(rows_GV), generator, p_GV.device))
        accepted_1 = leading(drawn_G[:-1] == drafted_G, count)
        return accepted_1, drawn_G.index_select(0, accepted_1)


accept_match = AcceptMatch()
