"""Algorithm 1's rule: what comes out has the target's own distribution.

Shapes: G drafted tokens, V tokens of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.acceptance.base import Verdict, residual
from specbench.sampling import draw


def accept_exact(p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int], generator: torch.Generator) -> Verdict:
    """Algorithm 1: keep a drafted x while r q(x) < p(x), r uniform in [0, 1); then draw from the residual at the
    first rejection, or from p behind the last token if none was rejected.

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


def accept_certain(best_G: Sequence[int], drafted_G: Sequence[int]) -> Verdict:
    """What `accept_exact`, and every other lossless rule, comes to at T = 0, where p has all its mass on one token of
    each row, `best_G`: p(x) is 1 or 0, so r q(x) < p(x) asks whether x is that token, and the residual of a row that
    refused x is that token. `best_G` has one token more than `drafted_G`."""
    accepted = 0
    for best, drafted in zip(best_G, drafted_G, strict=False):
        if best != drafted:
            break
        accepted += 1
    return Verdict(accepted, best_G[accepted])
