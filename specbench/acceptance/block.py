"""Block verification (Sun et al., ICLR 2025, "Block Verification Accelerates Speculative Decoding", Algorithm 2).

Lossless, and no rule that is has more expected tokens in a pass: a token that Algorithm 1 would have refused may stay
where the drafted text as a whole is no less likely under p than under q.

Shapes: G drafted tokens, V tokens of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.acceptance.base import Verdict, residual
from specbench.sampling import draw


def accept_block(p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int], generator: torch.Generator) -> Verdict:
    """Keep the longest beginning that passes its own test, also where a shorter one failed: x_1 ... x_i passes with
    chance h_i (`chances`). Then draw from norm(max(0, w_i p - q)), or from p where all were kept.

    A draft may end its proposal by what it has drawn: an end is a row of q without any mass, which is what the last
    token's test and the draw from p come to.
    """
    count = len(drafted_G)
    if count == 0:
        return Verdict.chain(0, draw(p_GV[0], generator))
    h_G, weights = chances(p_GV, q_GV, drafted_G)
    passed = (torch.rand(count, generator=generator, device=p_GV.device) < h_G).nonzero()
    accepted = int(passed[-1]) + 1 if len(passed) else 0
    if accepted == count:
        return Verdict.chain(accepted, draw(p_GV[count], generator))
    weight = weights[accepted - 1] if accepted else 1.0
    return Verdict.chain(accepted, draw(residual(weight * p_GV[accepted], q_GV[accepted]), generator))


def chances(p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int]) -> tuple[Tensor, list[float]]:
    """h_i [G], the chance that x_1 ... x_i passes its test, and w_i, i = 1 ... G.

    w_i = min(1, w_{i-1} p(x_i) / q(x_i)), w_0 = 1: how likely the beginning is under p against q, never above 1.
    h_i = S_i / (S_i + 1 - w_i) with S_i = sum_x max(0, w_i p(x) - q(x)) at the next place, and h_G = w_G.
    """
    count = len(drafted_G)
    index_G1 = torch.tensor(drafted_G, device=p_GV.device).unsqueeze(-1)
    p_of_drafted = p_GV[:count].gather(-1, index_G1).squeeze(-1).tolist()
    q_of_drafted = q_GV.gather(-1, index_G1).squeeze(-1).tolist()
    weights, weight = [], 1.0
    for p, q in zip(p_of_drafted, q_of_drafted, strict=True):
        weight = min(weight * p / q, 1.0)  # a drawn token has q > 0
        weights.append(weight)
    w_G = torch.tensor(weights, device=p_GV.device, dtype=p_GV.dtype)
    before_G = w_G[:-1]
    rest_G = (before_G.unsqueeze(-1) * p_GV[1:count] - q_GV[1:]).clamp(min=0).sum(-1)
    # Where w_i is 1 the test is passed for sure, also where p and q agree and nothing is left.
    h_G = torch.where(before_G < 1, rest_G / (rest_G + 1 - before_G), 1.0)
    return torch.cat([h_G, w_G[-1:]]), weights
