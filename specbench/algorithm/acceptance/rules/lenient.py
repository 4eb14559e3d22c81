"""Lenience (appendix A.5), lossy: it accepts more, and the output no longer has the target's distribution.

Shapes: K tokens picked from the vocabulary, L positions, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import TokenRule, Verification, residual
from specbench.config.keys import key, require
from specbench.config.rule import RuleConfig
from specbench.deferred import torch
from specbench.kernels.rows import RuleInC
from specbench.kernels.structures import Kind
from specbench.sampling import Sampling, before_argmax, standardise

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.config.draft import DraftConfig
    from specbench.config.tree import TreeConfig


GREEDY = Sampling(temperature=0.0)


@dataclass
class LenientConfig(RuleConfig):
    """Lenience."""

    name: ClassVar[str] = "lenient"
    about: ClassVar[str] = (
        "Lenience (appendix A.5), lossy: p is compared with l q. The paper's l are 1, 0.5, 0.3 and 0.1."
    )
    lossy: ClassVar[bool] = True
    lenience: float = key(0.5, "l of A.5")

    def check(self, temperature: float, tree: TreeConfig, draft: DraftConfig) -> None:
        require(0 < self.lenience <= 1, "accept.lenience", self.lenience, "above 0 and at most 1")

    @property
    def is_exact(self) -> bool:
        return self.lenience == 1

    def label(self) -> str:
        return f"lenient l={self.lenience:g}"

    def verification(self, sampling: Sampling) -> Verification:
        return Verification(lenient(self.lenience, sampling), before_argmax(sampling))


def lenient(lenience: float, sampling: Sampling) -> TokenRule:
    """The rule of one lenience l, 0 < l <= 1, for sampling, or at T = 0 for argmax."""
    return Lenient(lenience) if sampling.temperature > 0 else NearBest(lenience)


@dataclass(frozen=True)
class Lenient(TokenRule):
    """T > 0: accept a drafted x while r l q(x) < p(x); at the first rejection draw from norm(max(0, p - l q)).

    A.5 multiplies q by l in the comparison and promises that no token is emitted with probability above p(x) / l. It
    does not define the residual; we use l q there as well. The rule is then Algorithm 1 against the measure p / l: it
    accepts min(p / l, q), and the residual is the rest, max(0, p / l - q). A rejection has probability
    sum_x max(0, q - p / l), which is at most the mass of that rest, so a token's total probability is at most
    p(x) / l. l = 1 is Algorithm 1. (norm(max(0, p - q)) would satisfy the bound as well and be slightly closer to p,
    but A.5 does not change the residual.)
    """

    lenience: float

    @property
    def in_c(self) -> RuleInC:
        return RuleInC(Kind.LENIENT, lenience=self.lenience)

    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        weighed_LK = self.lenience * q_LK
        return torch.where(p_LK >= weighed_LK, 1.0, p_LK / weighed_LK)

    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        return residual(p_LV, self.lenience * q_LV)


@dataclass(frozen=True)
class NearBest(TokenRule):
    """T = 0: accept x if p(x) >= l max p; the argmax follows a rejection, and the last drafted token.

    p must be from T = 1: with one-hot rows l has no effect. The paper compares p before argmax. Its inequality is
    printed reversed, and with l < 1 would reject the argmax itself. This is our interpretation.
    """

    lenience: float

    @property
    def in_c(self) -> RuleInC:
        return RuleInC(Kind.NEAR_BEST, lenience=self.lenience)

    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        return (p_LK >= self.lenience * p_LV.max(-1, keepdim=True).values).to(p_LK.dtype)

    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        return self.bonus(p_LV)

    def bonus(self, p_LV: Tensor) -> Tensor:
        return standardise(p_LV, GREEDY, p_LV.shape[-1])
