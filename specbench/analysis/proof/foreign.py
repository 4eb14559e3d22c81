"""Whether some sampled tokens are foreign: any token of the vocabulary in place of one that p gives.

A token that was changed on its way (a wrong index, a buffer that was overwritten) is one of V tokens, whatever p says.
A few of them hardly move a mean over all tokens, which is what the tests of `analysis.proof` see, but each is far less
likely than p's own tokens. If one token in 1 / r is foreign, a token x has the probability (1 - r) p(x) + r / V. Over
p(x) this is a martingale with mean 1 if tokens are drawn from p, and so is its product over all tokens, and the mean of
these products over `RATES`: it exceeds `CHANCE` by chance in fewer than one of `CHANCE` files (Ville's inequality),
with no normal approximation, however few the tokens are. If p is 0 at some tokens (top-k, top-p) the mean is below 1,
and the chance smaller: such a token counts as the least likely of the others, and is a fault by itself.

`Foreign.one_in` is the rarest fault that would have shown nine times in ten: the mean and the variance of the log of
the product are computed from p itself, at the first `MOST` positions.

Shapes: L positions of a chunk, V tokens of the vocabulary.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.analysis.proof import QUANTILE
from specbench.sampling import widest

CHANCE = 10_000  # sound files, of which fewer than one fails
ONE_IN = (2, 5, 10, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000, 2000, 5000)  # tokens
RATES = tuple(1 / number for number in ONE_IN)
MOST = 2048  # positions whose whole p is read for the power
APART = 100  # to one: how clearly other completions must speak against a rate, to be without the fault
MISSED = 0.1  # of the faults that `one_in` names


def _zeros() -> list[float]:
    return [0.0] * len(RATES)


@dataclass
class Foreign:
    """The test along completions, of which `add` reads one after another.

    Attributes:
        tokens: how many were read.
        nats: for each rate, the log of the product.
        read: positions that `means`, `variances` and `inside` are over.
        means, variances: for each rate, of the log of the product if tokens were foreign at this rate.
        inside: for each rate, the log of the chance that no foreign token has p = 0.
    """

    tokens: int = 0
    nats: list[float] = field(default_factory=_zeros)
    read: int = 0
    means: list[float] = field(default_factory=_zeros)
    variances: list[float] = field(default_factory=_zeros)
    inside: list[float] = field(default_factory=_zeros)

    def add(self, p_LV: Tensor, written_L: Tensor) -> None:
        """Add a chunk to `nats`: p at its positions, and the tokens that stand there.

        Of the first `MOST` positions `means`, `variances` and `inside` are added as well, from all of p.
        """
        lowest_L1 = torch.where(p_LV > 0, p_LV, torch.inf).amin(-1, keepdim=True)
        chosen_L = p_LV.gather(-1, written_L[:, None]).maximum(lowest_L1).squeeze(-1).cpu().double()
        size = p_LV.shape[-1]
        for index, rate in enumerate(RATES):
            self.nats[index] += float(torch.log1p(rate / (size * chosen_L) - rate).sum())
        self.tokens += len(p_LV)
        for_power_KV = p_LV[: max(0, MOST - self.read)]
        if not len(for_power_KV):
            return
        self.read += len(for_power_KV)
        outside_K = (for_power_KV == 0).to(widest(p_LV.device)).mean(-1).cpu().double()
        # At a low temperature some p are so small that 1 / p is infinite. With a floor they gain less than in `nats`.
        floor_K1 = lowest_L1[: len(for_power_KV)].clamp(min=torch.finfo(p_LV.dtype).tiny)
        over_KV = (size * for_power_KV.maximum(floor_K1)).reciprocal()
        for index, rate in enumerate(RATES):
            gain_KV = torch.log1p(rate * over_KV - rate)
            # The first and second moment of a token drawn from p, and of one of the V tokens.
            own_K, own2_K = ((for_power_KV * values).sum(-1).cpu().double() for values in (gain_KV, gain_KV**2))
            any_K, any2_K = (values.mean(-1).cpu().double() for values in (gain_KV, gain_KV**2))
            mean_K = (1 - rate) * own_K + rate * any_K
            self.means[index] += float(mean_K.sum())
            # If p leaves nothing to chance, the difference is rounding, of either sign.
            self.variances[index] += float(((1 - rate) * own2_K + rate * any2_K - mean_K**2).clamp(min=0).sum())
            self.inside[index] += float(torch.log1p(-rate * outside_K).sum())

    @property
    def total(self) -> float:
        """The log of the mean over all rates."""
        highest = max(self.nats)
        return highest + math.log(sum(math.exp(one - highest) for one in self.nats) / len(RATES))

    @property
    def failed(self) -> bool:
        """Whether tokens are foreign."""
        return self.total > math.log(CHANCE)

    @property
    def likeliest(self) -> int:
        """The index of the rate at which the tokens are likeliest."""
        return max(range(len(RATES)), key=self.nats.__getitem__)

    @property
    def one_in(self) -> int | None:
        """The most N for which one foreign token in N would show nine times in ten; None if no rate would."""
        if not self.read:
            return None
        share = self.tokens / self.read
        needed = math.log(CHANCE * len(RATES))
        shown = [
            number
            for number, mean, variance, inside in zip(ONE_IN, self.means, self.variances, self.inside, strict=True)
            if share * mean - QUANTILE * math.sqrt(share * variance) > needed or share * inside < math.log(MISSED)
        ]
        return max(shown, default=None)

    def __str__(self) -> str:
        return (
            f"about one token in {ONE_IN[self.likeliest]} could be any token of the vocabulary (likelier so by "
            f"{self.total:.0f} nats in {self.tokens:,} tokens)"
        )

    def is_without(self, other: "Foreign") -> bool:
        """Whether these tokens speak against the rate at which the tokens of `other` are foreign."""
        return self.nats[other.likeliest] < -math.log(APART)
