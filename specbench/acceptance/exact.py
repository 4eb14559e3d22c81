"""Algorithm 1's rule: the text has the target's own distribution.

Shapes: G drafted tokens, V tokens of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.acceptance.base import Verdict, residual
from specbench.sampling import draw


def accept_exact(p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int], generator: torch.Generator) -> Verdict:
    """Algorithm 1: accept a drafted x while r q(x) < p(x), r uniform in [0, 1); then draw from the residual at the
    first rejection, or from p after the last token if none was rejected.

    The test is a product, not a quotient: q(x) may be tiny, and p(x) = 0 must always reject (also at r = 0).
    """
    count = len(drafted_G)
    if count == 0:
        return Verdict.chain(0, draw(p_GV[0], generator))
    index_G1 = torch.tensor(drafted_G, device=p_GV.device).unsqueeze(-1)
    p_of_drafted_G = p_GV[:count].gather(-1, index_G1).squeeze(-1)
    q_of_drafted_G = q_GV.gather(-1, index_G1).squeeze(-1)
    uniform_G = torch.rand(count, generator=generator, device=p_GV.device)
    accepted = int((uniform_G * q_of_drafted_G < p_of_drafted_G).cumprod(0).sum())
    if accepted == count:
        return Verdict.chain(accepted, draw(p_GV[count], generator))
    return Verdict.chain(accepted, draw(residual(p_GV[accepted], q_GV[accepted]), generator))
