"""The relaxed rule of SpecDec (Xia et al. 2023, "Speculative Decoding", section 3.2, arXiv 2203.16487): T = 0, lossy.

Shapes: K tokens picked from the vocabulary, L positions, V tokens of the vocabulary.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from specbench.algorithm.acceptance.base import TokenRule
from specbench.algorithm.acceptance.lenient import NearBest


@dataclass(frozen=True)
class TopBeta(TokenRule):
    """Accept a drafted x among the target's `beta` likeliest tokens, at most `tau` nats below the best.

    The argmax follows a rejection, and the last draft token. Without `beta` this is `NearBest` with l =
    exp(-tau). p must be that of T = 1, as there. Tokens of equal probability share a rank. With beta = 1 only the
    argmax passes.
    """

    beta: int
    tau: float

    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        last_L1 = p_LV.topk(min(self.beta, p_LV.shape[-1]), dim=-1).values[..., -1:]
        return self._near_best.accept_probability(p_LK, q_LK, p_LV) * (p_LK >= last_L1)

    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        return self.bonus(p_LV)

    def bonus(self, p_LV: Tensor) -> Tensor:
        return self._near_best.bonus(p_LV)

    @property
    def _near_best(self) -> NearBest:
        return NearBest(math.exp(-self.tau))
