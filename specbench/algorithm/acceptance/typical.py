"""Typical acceptance (Cai et al. 2024, "Medusa", section 2.3.1): accept tokens that are plausible under the target.

Shapes: K tokens picked from the vocabulary, L positions, V tokens of the vocabulary.
"""

from dataclasses import dataclass

from torch import Tensor

from specbench.algorithm.acceptance.base import TokenRule


@dataclass(frozen=True)
class Typical(TokenRule):
    """Accept a drafted x while p(x) > min(epsilon, delta exp(-H(p))), H the entropy of p in nats; then draw from p.

    The more certain the target, the higher the threshold, up to epsilon. The test uses neither q nor a random number,
    so accepted tokens have the draft's distribution among plausible tokens: lossy. Medusa always takes its first token
    from the target; here the token after the accepted tokens plays that role, so if every drafted token is rejected,
    the completion is the target's own. p is the standardised p: at T = 0 it is one-hot, its entropy is 0, only the
    argmax passes, and the rule is lossless.
    """

    epsilon: float
    delta: float

    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        entropy_L1 = -p_LV.xlogy(p_LV).sum(-1, keepdim=True)
        bar_L1 = (self.delta * (-entropy_L1).exp()).clamp(max=self.epsilon)
        return (p_LK > bar_L1).to(p_LK.dtype)

    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        return p_LV
