"""What no rule can exceed: the largest probability with which one of k drafted tokens can be the target's.

The optimal transport between p and the drafted sets (Sun et al. 2023, "SpecTr") accepts with probability
1 + min_H [p(H) - Pr(all k drafts are in H)], and H need only be sets of the tokens of the highest q / p (Hu et al.
2025, "Towards Optimal Multi-draft Speculative Decoding").

Shapes: V tokens of the vocabulary, T points of time.
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
TIMES_T = np.exp(np.linspace(-40.0, 45.0, 1200))  # evenly in the logarithm, far enough to both sides


def optimal_acceptance(p_V: Numbers, q_V: Numbers, drafts: int, replaced: bool) -> float:
    """The bound for `drafts` tokens drawn from q: independent ones if `replaced`, else distinct ones, of which q must
    have so many."""
    with np.errstate(divide="ignore", invalid="ignore"):
        order_V = np.argsort(-np.where(q_V > 0, q_V / p_V, -1.0), kind="stable")
    p_V, q_V = p_V[order_V], q_V[order_V]
    all_inside_V = np.cumsum(q_V) ** drafts if replaced else _distinct_inside(q_V, drafts)
    return float(1 + min(0.0, (np.cumsum(p_V) - all_inside_V).min()))


def _distinct_inside(q_V: Numbers, drafts: int) -> Numbers:
    """Pr(the first `drafts` distinct draws are among the first m tokens), for m = 1 ... V.

    Distinct draws come in the order of exponential clocks with rates q: all are inside if `drafts` clocks inside ring
    before the first outside. Integrated over the time of that one, with the number of rings inside as a sum of
    independent ones (Poisson binomial).
    """
    step = np.diff(np.log(TIMES_T))[0]
    rings_KT = np.zeros((drafts, len(TIMES_T)))  # the probability of 0, 1, ... rings inside so far
    rings_KT[0] = 1.0
    outside_V = np.maximum(0.0, q_V.sum() - np.cumsum(q_V))
    found_V = np.empty(len(q_V))
    for place, (q, outside) in enumerate(zip(q_V, outside_V, strict=True)):
        silent_T = np.exp(-q * TIMES_T)
        rings_KT[1:] = rings_KT[1:] * silent_T + rings_KT[:-1] * (1 - silent_T)
        rings_KT[0] *= silent_T
        enough_T = 1 - rings_KT.sum(0)
        first_T = outside * np.exp(-outside * TIMES_T) * TIMES_T  # density over the logarithm of time
        inside = float((enough_T * first_T).sum() * step)
        found_V[place] = inside if outside > np.finfo(float).eps else 1.0
    return found_V
