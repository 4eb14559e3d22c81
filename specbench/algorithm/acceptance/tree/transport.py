"""The bound on all rules: the largest probability with which one of k drafted tokens can be the target's.

The optimal transport between p and the drafted sets (Sun et al. 2023, "SpecTr") accepts with probability 1 + min_H
[p(H) - Pr(all k drafts are in H)], and H need only be sets of the tokens of the highest q / p (Hu et al. 2025, "Towards
Optimal Multi-draft Speculative Decoding").

Shapes: V tokens of the vocabulary, G groups of neighbouring tokens, K numbers of drafts, T points of time.
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
STEP = 0.3  # of the logarithm of time, in which what is summed is smooth: sums err by less than 1e-10
TIMES_T = np.exp(np.arange(-16.0, 40.0, STEP))
SINGLES, RUNS = 48, 32


def optimal_acceptance(p_V: Numbers, q_V: Numbers, drafts: int, replaced: bool) -> Numbers:
    """The bound [K] for 1, 2, ... `drafts` tokens drawn from q, independent if `replaced`, otherwise distinct.

    Of distinct draws from more than `SINGLES` tokens the likeliest are treated one by one, and the rest in runs of
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
    """Where each group of tokens begins, and whether it is one of the likeliest tokens alone."""
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
    the first outside. Integrated over the time of that ring. The number of rings inside is a sum of independent
    variables: of single tokens (Poisson binomial), and of those in runs, each too rare to ring twice (Poisson).
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
