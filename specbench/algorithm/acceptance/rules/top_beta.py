"""The relaxed rule of SpecDec (Xia et al. 2023, "Speculative Decoding", section 3.2, arXiv 2203.16487): T = 0, lossy.

Shapes: K tokens picked from the vocabulary, L positions, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import TokenRule, Verification
from specbench.algorithm.acceptance.rules.lenient import NearBest
from specbench.config.keys import key, require
from specbench.config.rule import RuleConfig
from specbench.errors import UserError
from specbench.kernels.rows import RuleInC
from specbench.kernels.structures import Kind
from specbench.sampling import Sampling, before_argmax

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.config.draft import DraftConfig
    from specbench.config.tree import TreeConfig


@dataclass
class TopBetaConfig(RuleConfig):
    """SpecDec's relaxed rule."""

    name: ClassVar[str] = "top-beta"
    about: ClassVar[str] = (
        "SpecDec's relaxed rule, lossy, T = 0: a token of the target's beta likeliest, at most tau nats "
        "below the best. The paper has 3 and 1."
    )
    lossy: ClassVar[bool] = True
    beta: int = key(3, "how many of the target's likeliest tokens may be accepted; 1: only the argmax")
    tau: float = key(1.0, "at most so far may a token's log-probability be below the best, in nats")

    def check(self, temperature: float, tree: TreeConfig, draft: DraftConfig) -> None:
        require(self.beta >= 1, "accept.beta", self.beta, "at least 1")
        require(0 <= self.tau < math.inf, "accept.tau", self.tau, "at least 0")
        if temperature > 0:
            raise UserError(
                f"accept=top-beta: compares tokens with the argmax, so not at sampling.temperature="
                f"{temperature:g}; use sampling.temperature=0, or accept=lenient or accept=typical"
            )

    @property
    def is_exact(self) -> bool:
        return self.beta == 1

    def label(self) -> str:
        return f"top-beta β={self.beta:g} τ={self.tau:g}"

    def verification(self, sampling: Sampling) -> Verification:
        return Verification(TopBeta(self.beta, self.tau), before_argmax(sampling))


@dataclass(frozen=True)
class TopBeta(TokenRule):
    """Accept a drafted x among the target's `beta` likeliest tokens, at most `tau` nats below the best.

    The argmax follows a rejection and the last draft token. Without `beta` this is `NearBest` with l =
    exp(-tau). p must be from T = 1, as there. Tokens of equal probability share a rank. With beta = 1 only the
    argmax passes.
    """

    beta: int
    tau: float

    @property
    def in_c(self) -> RuleInC:
        return RuleInC(Kind.NEAR_BEST, lenience=math.exp(-self.tau), beta=self.beta)

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
