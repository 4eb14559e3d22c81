"""The expected acceptance of the rules on trees (`acceptance.tree.rounds`), by formulas on many positions at once.

It is the probability that the first, second, ... child of a node is the accepted child, in expectation over the draws
of the children: exact where the residual depends on no drawn token (`fixed`, `replaced`, `of_k_sequential`), over a few
draws of the children where it does (`distinct`).

Shapes: L positions, K children, V tokens of the vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.acceptance.base import residual

DRAWS = 4
HALVINGS = 24  # to fp32


class Ranked(NamedTuple):
    """By rank [L, K]: the probability that this child is accepted, and the same given the token of the text."""

    accepted_LK: Tensor
    given_LK: Tensor


def fixed(p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, most: int) -> Ranked:
    """Of the `most` likeliest tokens of q: each is accepted where a draw from p is that token."""
    children_LK = q_LV.topk(min(most, q_LV.shape[-1]), dim=-1).indices
    accepted_LK = p_LV.gather(-1, children_LK)
    return _padded(accepted_LK, (children_LK == written_L1).to(p_LV.dtype), most)


def replaced(p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, most: int) -> Ranked:
    """Of `most` independent draws from q, tested in rounds (Miao et al. 2024, "SpecInfer", Algorithm 2)."""
    reached_L1 = torch.ones_like(p_LV[:, :1])
    left_LV, accepted, written = p_LV, list[Tensor](), list[Tensor]()
    for _ in range(most):
        both_LV = left_LV.minimum(q_LV)
        share_L1 = both_LV.sum(-1, keepdim=True)
        accepted.append(reached_L1 * share_L1)
        written.append(reached_L1 * both_LV.gather(-1, written_L1))
        reached_L1 = reached_L1 * (1 - share_L1).clamp(min=0)
        left_LV = residual(left_LV, q_LV)
    return _ranked(accepted, written, p_LV.gather(-1, written_L1), most)


def distinct(
    p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, most: int, generator: torch.Generator, times: int = DRAWS
) -> Ranked:
    """Acceptance by rank of `most` draws from q without replacement, tested in rounds.

    The mean over `times` draws of the children; the last child tested at each rank is integrated out. An unbiased
    estimate, which given the token may exceed 1. Ranks beyond the tokens that q has count as never accepted. Chen et
    al. 2024, "Sequoia", Algorithm 2.
    """
    drawn = [_distinct_once(p_LV, q_LV, written_L1, most, generator) for _ in range(times)]
    return Ranked(*(torch.stack(of_each).mean(0) for of_each in zip(*drawn, strict=True)))


def _distinct_once(p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, most: int, generator: torch.Generator) -> Ranked:
    clocks_LV = torch.empty_like(q_LV, dtype=torch.float64).exponential_(generator=generator)
    children_LK = (q_LV.double() / clocks_LV).topk(min(most, q_LV.shape[-1]), dim=-1).indices
    reached_L1 = torch.ones_like(p_LV[:, :1])
    left_LV, law_LV, accepted, written = p_LV, q_LV, list[Tensor](), list[Tensor]()
    for rank in range(children_LK.shape[-1]):
        child_L1 = children_LK[:, rank : rank + 1]
        both_LV = left_LV.minimum(law_LV)
        accepted.append(reached_L1 * both_LV.sum(-1, keepdim=True))
        written.append(reached_L1 * both_LV.gather(-1, written_L1))
        chance_L1 = (left_LV.gather(-1, child_L1) / law_LV.gather(-1, child_L1)).nan_to_num(0.0).clamp(max=1)
        reached_L1 = reached_L1 * (1 - chance_L1)
        left_LV = residual(left_LV, law_LV)
        law_LV = law_LV.scatter(-1, child_L1, 0.0)
        mass_L1 = law_LV.sum(-1, keepdim=True)
        law_LV = torch.where(mass_L1 > 0, law_LV / mass_L1, 0.0)
    return _ranked(accepted, written, p_LV.gather(-1, written_L1), most)


def of_k_sequential(p_LV: Tensor, q_LV: Tensor, most: int) -> Tensor:
    """[L, K]: the probability that K-SEQ accepts one of 1, 2, ... `most` independent draws from q.

    1 - (1 - beta)^k with the rho of `rounds.scale` (Sun et al. 2023, "SpecTr", Algorithm 3).
    """
    found = [p_LV.minimum(q_LV).sum(-1, keepdim=True)]
    for children in range(2, most + 1):
        low_L1 = torch.ones_like(found[0])
        high_L1 = children * low_L1
        for _ in range(HALVINGS):
            middle_L1 = (low_L1 + high_L1) / 2
            beta_L1 = q_LV.minimum(p_LV / middle_L1).sum(-1, keepdim=True)
            fits_L1 = 1 - (1 - beta_L1) ** children <= middle_L1 * beta_L1
            low_L1, high_L1 = torch.where(fits_L1, low_L1, middle_L1), torch.where(fits_L1, middle_L1, high_L1)
        beta_L1 = q_LV.minimum(p_LV / high_L1).sum(-1, keepdim=True)
        found.append(1 - (1 - beta_L1).clamp(min=0) ** children)
    return torch.cat(found, -1)


def _ranked(accepted: list[Tensor], written: list[Tensor], p_L1: Tensor, most: int) -> Ranked:
    """`Ranked` from the probability that a child is accepted and is the text's token.

    p of that token is 0 only where two ways of computing it differ by rounding.
    """
    given_LK = torch.where(p_L1 > 0, torch.cat(written, -1) / p_L1, 0.0)
    return _padded(torch.cat(accepted, -1), given_LK, most)


def _padded(accepted_LK: Tensor, given_LK: Tensor, most: int) -> Ranked:
    """A vocabulary of fewer tokens has fewer children."""
    missing = (0, most - accepted_LK.shape[-1])
    return Ranked(pad(accepted_LK, missing), pad(given_LK, missing))
