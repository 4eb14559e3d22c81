"""Lenience (appendix A.5): more is accepted, and what comes out is no longer the target's own distribution.

Shapes: K tokens picked from the vocabulary, L positions, V tokens of the vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.acceptance.base import TokenRule, residual
from specbench.sampling import Sampling, standardise

GREEDY = Sampling(temperature=0.0)


def lenient(lenience: float, sampling: Sampling) -> TokenRule:
    """The rule of one lenience l, 0 < l <= 1, for what is sampled or, at T = 0, for argmax."""
    return Lenient(lenience) if sampling.temperature > 0 else NearBest(lenience)


@dataclass(frozen=True)
class Lenient(TokenRule):
    """T > 0: keep a drafted x while r l q(x) < p(x); at the first rejection draw from norm(max(0, p - l q)).

    A.5 multiplies q by l in the comparison and promises that no token comes out with more than p(x) / l; of the
    residual it says nothing. We put l q in the place of q there too. The rule is then Algorithm 1 against the measure
    p / l: min(p / l, q) of it is accepted, and what is left of it, p / l - q where that is positive, is the residual. A
    rejection happens with the chance sum_x max(0, q - p / l), which is at most the mass of that rest, so that accepted
    and redrawn together no token exceeds p(x) / l. l = 1 is Algorithm 1. (norm(max(0, p - q)) keeps the promise as
    well, and stays a little nearer to p; it would be a second change, which A.5 does not make.)
    """

    lenience: float

    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        weighed_LK = self.lenience * q_LK
        return torch.where(p_LK >= weighed_LK, 1.0, p_LK / weighed_LK)

    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        return residual(p_LV, self.lenience * q_LV)


@dataclass(frozen=True)
class NearBest(TokenRule):
    """T = 0: keep x where p(x) >= l max p; a rejection, and what follows the last drafted token, is the argmax.

    Here p must be that of T = 1: one-hot rows would leave l nothing to do. The paper compares p before argmax; its
    inequality is printed reversed, and with l < 1 would refuse the argmax itself. This is our reading of it.
    """

    lenience: float

    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        return (p_LK >= self.lenience * p_LV.max(-1, keepdim=True).values).to(p_LK.dtype)

    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        return self.bonus(p_LV)

    def bonus(self, p_LV: Tensor) -> Tensor:
        return standardise(p_LV, GREEDY, p_LV.shape[-1])
