"""Which drafted tokens stay, and what comes next: Algorithm 1's rule and its residual.

A rule is a function of (p, q, drafted, generator) that returns how many drafted tokens are accepted and the token
that follows them. It knows nothing of models, caches or text.

Shapes: G drafted tokens, V tokens of the vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.sampling import draw

# Below this the residual is what rounding left of p - q, not a distribution.
RESIDUAL_EPSILON = 1e-9


class Verdict(NamedTuple):
    """The outcome of one pass: the first `accepted` drafted tokens stay, and `token` follows them."""

    accepted: int
    token: int


AcceptanceRule = Callable[[Tensor, Tensor, Sequence[int], torch.Generator], Verdict]


def accept_exact(p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int], generator: torch.Generator) -> Verdict:
    """Algorithm 1: keep a drafted x while r q(x) < p(x), r uniform in [0, 1); then draw from the residual at the
    first rejection, or from p behind the last token if none was rejected.

    p_GV has one row more than q_GV: the target's distribution behind the last drafted token.
    The test is a product, not a quotient: q(x) may be tiny, and p(x) = 0 must always reject (also at r = 0).
    """
    count = len(drafted_G)
    if count == 0:
        return Verdict(0, draw(p_GV[0], generator))
    index_G1 = torch.tensor(drafted_G, device=p_GV.device).unsqueeze(-1)
    p_of_drafted_G = p_GV[:count].gather(-1, index_G1).squeeze(-1)
    q_of_drafted_G = q_GV.gather(-1, index_G1).squeeze(-1)
    uniform_G = torch.rand(count, generator=generator, device=p_GV.device)
    accepted = int((uniform_G * q_of_drafted_G < p_of_drafted_G).cumprod(0).sum())
    if accepted == count:
        return Verdict(accepted, draw(p_GV[count], generator))
    return Verdict(accepted, draw(residual(p_GV[accepted], q_GV[accepted]), generator))


def accept_by_chance(alpha: float) -> AcceptanceRule:
    """A rule that accepts each drafted token with probability `alpha`, whatever p and q say, and else does what
    Algorithm 1 does: for times at a given alpha. What it lets through is not the target's text."""

    def accept(p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int], generator: torch.Generator) -> Verdict:
        count = len(drafted_G)
        uniform_G = torch.rand(count, generator=generator, device=p_GV.device)
        accepted = int((uniform_G < alpha).cumprod(0).sum())
        if accepted == count:
            return Verdict(accepted, draw(p_GV[count], generator))
        return Verdict(accepted, draw(residual(p_GV[accepted], q_GV[accepted]), generator))

    return accept


def residual(p_V: Tensor, q_V: Tensor) -> Tensor:
    """norm(max(0, p - q)), section 2.3. Where p and q agree nothing is left to norm, and p itself is returned:
    a rejection there can only come from rounding."""
    excess_V = (p_V - q_V).clamp(min=0)
    mass = excess_V.sum()
    return p_V if mass <= RESIDUAL_EPSILON else excess_V / mass
