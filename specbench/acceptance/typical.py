"""Typical acceptance (Cai et al. 2024, "Medusa", section 2.3.1): keep what the target finds plausible.

Shapes: K tokens picked from the vocabulary, L positions, V tokens of the vocabulary.
"""

from dataclasses import dataclass

from torch import Tensor

from specbench.acceptance.base import TokenRule


@dataclass(frozen=True)
class Typical(TokenRule):
    """Keep a drafted x while p(x) > min(epsilon, delta exp(-H(p))), H the entropy of p in nats; what follows is drawn
    from p.

    The surer the target, the higher the bar, up to epsilon. q is not asked and nothing is drawn to decide, so what
    comes out has the draft's distribution among plausible tokens: lossy. Medusa always takes its first token from the
    target itself; the token after the accepted tokens is that token here, so a draft that is always rejected leaves
    the target's own text. p is the standardised p: at T = 0 it is one-hot, its entropy is 0, only the argmax passes,
    and the text is the target's own.
    """

    epsilon: float
    delta: float

    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        entropy_L1 = -p_LV.xlogy(p_LV).sum(-1, keepdim=True)
        bar_L1 = (self.delta * (-entropy_L1).exp()).clamp(max=self.epsilon)
        return (p_LK > bar_L1).to(p_LK.dtype)

    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        return p_LV
