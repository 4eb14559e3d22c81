"""Strict match: draw the target's tokens, and accept draft tokens as long as they are equal.

Lossless for any draft, since each emitted token is a draw from p. Drafted with q, a token is accepted with probability
sum_x p(x) q(x), never above Algorithm 1's sum_x min(p(x), q(x)); drafted greedily, with p at q's argmax, as Algorithm 1
does for a one-hot q.

Shapes: G drafted tokens, L positions, V tokens of the vocabulary.
"""

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import ChainRule, leading
from specbench.sampling import drawn, uniforms


class AcceptMatch(ChainRule):
    """Draw the target's token at every position; accept a drafted token while both are equal.

    The next token is the first draw that differs, or the draw after the last draft token. q has no effect.
    """

    def decide(
        self, p_GV: Tensor, q_GV: Tensor, drafted_G: Tensor, count: Tensor | int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        rows_GV = p_GV[: len(drafted_G) + 1]
        drawn_G = drawn(rows_GV, uniforms(len(rows_GV), generator, p_GV.device))
        accepted_1 = leading(drawn_G[:-1] == drafted_G, count)
        return accepted_1, drawn_G.index_select(0, accepted_1)


accept_match = AcceptMatch()


def match_probability(p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """The probability [L] that tokens drawn from p and from q are the same."""
    return (p_LV * q_LV).sum(-1)


def greedy_rows(q_LV: Tensor) -> Tensor:
    """One-hot rows [L, V] at the likeliest token of q, the first of equal tokens; none for a row without mass."""
    highest_L1, index_L1 = q_LV.max(-1, keepdim=True)
    return torch.zeros_like(q_LV).scatter_(-1, index_L1, (highest_L1 > 0).to(q_LV.dtype))
