"""The expected acceptance of the rules on trees (`tree_rules`), by formulas on many positions at once.

It is the probability that the first, second, ... child of a node is the accepted child, in expectation over the draws
of the children. It is exact if the residual depends on no drawn token (`fixed`, `replaced`, `of_k_sequential`),
otherwise a mean over a few draws of the rejected children (`distinct`).

The bound on all rules is the largest probability with which one of k drafted tokens can be the target's
(`optimal_acceptance`): the optimal transport between p and the drafted sets (Sun et al. 2023, "SpecTr") accepts with
probability 1 + min_H [p(H) - Pr(all k drafts are in H)], and H need only be sets of the tokens of the highest q / p (Hu
et al. 2025, "Towards Optimal Multi-draft Speculative Decoding").

Shapes: L positions, K children (of the bound: numbers of drafts), V tokens of the vocabulary, G groups of neighbouring
tokens, T points of time.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from specbench.algorithm.acceptance.base import residual
from specbench.sampling import drawn, uniforms

DRAWS = 4
HALVINGS = 24  # to fp32


class Ranked(NamedTuple):
    """By rank [L, K]: the probability that this child is accepted, and the same given the token of the text."""

    accepted_LK: Tensor
    given_LK: Tensor


def fixed(p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, most: int) -> Ranked:
    """Acceptance by rank of the `most` likeliest tokens of q: each is accepted if a draw from p is that token."""
    children_LK = q_LV.topk(min(most, q_LV.shape[-1]), dim=-1).indices
    accepted_LK = p_LV.gather(-1, children_LK)
    return _padded(accepted_LK, (children_LK == written_L1).to(p_LV.dtype), most)


def replaced(p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, most: int) -> Ranked:
    """Acceptance by rank of `most` independent draws from q, in rounds (Miao et al. 2024, "SpecInfer", Algorithm 2)."""
    return _in_rounds(p_LV, q_LV, written_L1, most, most, lambda law_LV, _: law_LV)


def _in_rounds(
    p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, rounds: int, most: int, next_law: Callable[[Tensor, Tensor], Tensor]
) -> Ranked:
    """Acceptance by rank of `most` children, of which `rounds` exist and are tested in turn.

    `next_law` returns the law of the next child, given the law of a child and its accepted part.
    """
    reached_L1 = torch.ones_like(p_LV[:, :1])
    left_LV, law_LV, accepted, written = p_LV, q_LV, list[Tensor](), list[Tensor]()
    for _ in range(rounds):
        both_LV = left_LV.minimum(law_LV)
        share_L1 = _share(both_LV)
        accepted.append(reached_L1 * share_L1)
        written.append(reached_L1 * both_LV.gather(-1, written_L1))
        reached_L1 = reached_L1 * (1 - share_L1)
        left_LV, law_LV = residual(left_LV, law_LV), next_law(law_LV, both_LV)
    return _ranked(accepted, written, p_LV.gather(-1, written_L1), most)


def distinct(
    p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, most: int, generator: torch.Generator, times: int = DRAWS
) -> Ranked:
    """Acceptance by rank of `most` draws from q without replacement, tested in rounds.

    It is the mean over `times` draws of the children that are rejected before each rank; the accepted part of each is
    integrated out. The estimate is unbiased, and its sum over the ranks is at most 1, also given the token. Ranks
    beyond the tokens that q has count as never accepted. Chen et al. 2024, "Sequoia", Algorithm 2.
    """
    paths = [_along_a_path(p_LV, q_LV, written_L1, most, generator) for _ in range(times)]
    return Ranked(*(torch.stack(of_each).mean(0) for of_each in zip(*paths, strict=True)))


def _along_a_path(p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, most: int, generator: torch.Generator) -> Ranked:
    """Acceptance by rank along one path of rejected children.

    A child x of law d is rejected with probability max(0, d(x) - left(x)), so that the path is drawn from what is
    rejected, and reached with the product of 1 - sum min(left, d). Drawn from d itself and weighted by whether each
    child is rejected, the path would have the same mean, but a single path whose ranks add up to more than 1.
    """

    def without_a_rejected_child(law_LV: Tensor, both_LV: Tensor) -> Tensor:
        uniform_L = uniforms(len(law_LV), generator, law_LV.device)
        child_L = drawn(law_LV - both_LV, uniform_L).clamp(min=0)  # any child if none is rejected
        rest_LV = law_LV.scatter(-1, child_L.unsqueeze(-1), 0.0)
        mass_L1 = rest_LV.sum(-1, keepdim=True)
        return torch.where(mass_L1 > 0, rest_LV / mass_L1, 0.0)

    rounds = min(most, q_LV.shape[-1])  # no more tokens than the vocabulary has are distinct
    return _in_rounds(p_LV, q_LV, written_L1, rounds, most, without_a_rejected_child)


def _share(both_LV: Tensor) -> Tensor:
    """The mass [L, 1] of what two distributions have in common; fp32 sums of rows may exceed 1 by rounding."""
    return both_LV.sum(-1, keepdim=True).clamp(max=1.0)


def of_k_sequential(p_LV: Tensor, q_LV: Tensor, most: int) -> Tensor:
    """[L, K]: the probability that K-SEQ accepts one of 1, 2, ... `most` independent draws from q.

    1 - (1 - beta)^k with the rho of `tree_rules.scale` (Sun et al. 2023, "SpecTr", Algorithm 3).
    """
    return torch.cat(
        [1 - (1 - _accepted_of_each_draw(p_LV, q_LV, children)[1]) ** children for children in range(1, most + 1)], -1
    )


def k_sequential(p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, most: int, children: int) -> Ranked:
    """Acceptance by rank under K-SEQ of `children` independent draws from q, each tested on p itself; rho depends on k.

    Child r is the accepted one with (1 - beta)^r beta. Sun et al. 2023, "SpecTr", Algorithm 3.
    """
    each_LV, beta_L1 = _accepted_of_each_draw(p_LV, q_LV, children)
    reached_LK = (1 - beta_L1) ** torch.arange(children, device=p_LV.device)
    accepted, written = reached_LK * beta_L1, reached_LK * each_LV.gather(-1, written_L1)
    return _ranked([accepted], [written], p_LV.gather(-1, written_L1), most)


def _accepted_of_each_draw(p_LV: Tensor, q_LV: Tensor, children: int) -> tuple[Tensor, Tensor]:
    """What K-SEQ takes of each of `children` draws: min(q, p / rho) [L, V], and its sum beta [L, 1]."""
    low_L1 = torch.ones_like(p_LV[:, :1])
    high_L1 = children * low_L1
    for _ in range(HALVINGS if children > 1 else 0):
        middle_L1 = (low_L1 + high_L1) / 2
        beta_L1 = _share(q_LV.minimum(p_LV / middle_L1))
        fits_L1 = 1 - (1 - beta_L1) ** children <= middle_L1 * beta_L1
        low_L1, high_L1 = torch.where(fits_L1, low_L1, middle_L1), torch.where(fits_L1, middle_L1, high_L1)
    each_LV = q_LV.minimum(p_LV / high_L1)
    return each_LV, _share(each_LV)


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


Numbers = NDArray[np.float64]
STEP = 0.3  # of the logarithm of time, in which what is summed is smooth: sums err by less than 1e-10
TIMES_T = np.exp(np.arange(-16.0, 40.0, STEP))
SINGLES, RUNS = 48, 32


def optimal_acceptance(p_V: Numbers, q_V: Numbers, drafts: int, replaced: bool) -> Numbers:
    """The bound [K] for 1, 2, ... `drafts` tokens drawn from q, independent if `replaced`, otherwise distinct.

    For distinct draws from more than `SINGLES` tokens, the likeliest are treated one by one, and the rest in runs of
    neighbours, as tokens so rare that none is drawn for certain; the tests show an error below 1e-3.
    """
    drawn_V = q_V > 0
    if not drawn_V.any():  # nothing is drafted here
        return np.zeros(drafts)
    p_V, q_V = p_V[drawn_V], q_V[drawn_V]
    with np.errstate(divide="ignore"):
        order_V = np.argsort(-q_V / p_V, kind="stable")
    p_V, q_V = p_V[order_V], q_V[order_V]
    if replaced:
        p_G, inside_KG = np.cumsum(p_V), np.cumsum(q_V) ** np.arange(1, drafts + 1)[:, None]
    else:
        starts_G, single_G = _groups(q_V)
        p_G = np.cumsum(np.add.reduceat(p_V, starts_G))
        inside_KG = _distinct_inside(np.add.reduceat(q_V, starts_G), single_G, drafts)
    bound_K: Numbers = 1 + np.minimum(0.0, (p_G - inside_KG).min(-1))
    return bound_K


def _groups(q_V: Numbers) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Where each group of tokens begins, and whether it is a single one of the likeliest tokens."""
    single_V = np.zeros(len(q_V), bool)
    single_V[np.argsort(-q_V, kind="stable")[:SINGLES]] = True
    starts_V = single_V.copy()
    starts_V[0] = True
    starts_V[1:] |= single_V[:-1]
    starts_V[:: max(1, len(q_V) // RUNS)] = True
    starts_G = np.flatnonzero(starts_V)
    return starts_G, single_V[starts_G]


def _distinct_inside(q_G: Numbers, single_G: NDArray[np.bool_], drafts: int) -> Numbers:
    """[K, G]: Pr(the first k distinct draws are among the first g groups).

    Distinct draws come in the order of exponential clocks with rates q: all are inside if k clocks inside ring before
    the first outside. The probability is integrated over the time of that ring. The number of rings inside is a sum of
    independent variables: for single tokens (Poisson binomial), and for tokens in runs, each too rare to ring twice
    (Poisson).
    """
    inside_G = np.cumsum(q_G)
    outside_G = np.maximum(0.0, inside_G[-1] - inside_G)
    rings_KT = np.zeros((drafts, len(TIMES_T)))  # the probability of 0, 1, ... rings of single tokens so far
    rings_KT[0] = 1.0
    rings = list[Numbers]()
    for q, single in zip(q_G, single_G, strict=True):
        if single:
            silent_T = np.exp(-q * TIMES_T)
            more_KT = rings_KT * silent_T
            more_KT[1:] += rings_KT[:-1] * (1 - silent_T)
            rings_KT = more_KT
        rings.append(rings_KT)
    singles_GKT = np.stack(rings)
    rate_GT = np.cumsum(np.where(single_G, 0.0, q_G))[:, None] * TIMES_T
    fewer_GT = np.zeros_like(rate_GT)  # the probability of fewer rings than drafts
    likely_GT = np.exp(-rate_GT)
    poisson = [likely_GT]
    for count in range(1, drafts):
        likely_GT = likely_GT * rate_GT / count
        poisson.append(likely_GT)
    first_GT = outside_G[:, None] * np.exp(-outside_G[:, None] * TIMES_T) * TIMES_T * STEP  # the first outside
    found_KG = np.empty((drafts, len(q_G)))
    for count in range(drafts):
        fewer_GT = fewer_GT + sum(singles_GKT[:, ours] * poisson[count - ours] for ours in range(count + 1))
        found_KG[count] = ((1 - fewer_GT) * first_GT).sum(-1)
    found_KG[:, outside_G <= np.finfo(float).eps] = 1.0
    return found_KG
