"""Acceptance by chance: for times at a given alpha.

Shapes: G drafted tokens, V tokens of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.acceptance.base import AcceptanceRule, Verdict, residual
from specbench.sampling import draw


def accept_by_chance(alpha: float) -> AcceptanceRule:
    """A rule that accepts each drafted token with probability `alpha`, whatever p and q say, and else does what
    Algorithm 1 does. What it lets through is not the target's text."""

    def accept(p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int], generator: torch.Generator) -> Verdict:
        count = len(drafted_G)
        uniform_G = torch.rand(count, generator=generator, device=p_GV.device)
        accepted = int((uniform_G < alpha).cumprod(0).sum())
        if accepted == count:
            return Verdict.chain(accepted, draw(p_GV[count], generator))
        return Verdict.chain(accepted, draw(residual(p_GV[accepted], q_GV[accepted]), generator))

    return accept
