"""Lenience (appendix A.5): how much more is accepted, and how far the output leaves the target.

T > 0: a drafted x is kept while r q(x) < p(x) / l, r uniform in [0, 1); a rejection draws from norm(max(0, p - l q)).
So alpha(l) = E sum_x min(p(x) / l, q(x)), and no token comes out with more than p(x) / l.

T = 0: p and q are one-hot, and l would change nothing. The paper compares p before argmax; its inequality is printed
reversed (with l < 1 it would refuse the argmax itself). We read it as: keep x where p(x) >= l max p, p at T = 1 (with
the run's top-k and top-p); a rejection gives the argmax.

Both are taken along the target's own text, as alpha is. Text under lenience would go elsewhere.

Shapes: L positions, V tokens of the vocabulary.
"""

from dataclasses import replace

from torch import Tensor

from specbench.acceptance import RESIDUAL_EPSILON
from specbench.sampling import Sampling, standardise

LENIENCES = (0.5, 0.3, 0.1)  # the paper's; at 1 alpha(l) is alpha


def compared(logits_LV: Tensor, sampling: Sampling, vocabulary_size: int) -> Tensor:
    """p as the rule compares it: as standardised, and at T = 0 before argmax."""
    warm = replace(sampling, temperature=1.0) if sampling.temperature == 0 else sampling
    return standardise(logits_LV, warm, vocabulary_size)


def accepted(p_LV: Tensor, q_LV: Tensor, lenience: float, greedy: bool) -> Tensor:
    """The chance [L] that a token drafted from q is kept. `p_LV` is that of `compared`."""
    if greedy:
        return (q_LV * _near_the_best(p_LV, lenience)).sum(-1)
    return (p_LV / lenience).minimum(q_LV).sum(-1)


def emitted(p_LV: Tensor, q_LV: Tensor, lenience: float, greedy: bool) -> Tensor:
    """The distribution [L, V] of the token that comes out at a position where one was drafted."""
    if greedy:
        kept_LV = q_LV * _near_the_best(p_LV, lenience)
        best_LV = p_LV.new_zeros(p_LV.shape).scatter_(-1, p_LV.argmax(-1, keepdim=True), 1.0)
        return kept_LV + (1 - kept_LV.sum(-1, keepdim=True)) * best_LV
    kept_LV = (p_LV / lenience).minimum(q_LV)
    excess_LV = (p_LV - lenience * q_LV).clamp(min=0)
    mass_L1 = excess_LV.sum(-1, keepdim=True)
    rest_LV = excess_LV / mass_L1.clamp(min=RESIDUAL_EPSILON)
    return kept_LV + (1 - kept_LV.sum(-1, keepdim=True)) * rest_LV


def strayed(p_LV: Tensor, q_LV: Tensor, lenience: float, greedy: bool) -> Tensor:
    """Total variation [L] between what comes out and what the target alone would give."""
    out_LV = emitted(p_LV, q_LV, lenience, greedy)
    alone_LV = emitted(p_LV, q_LV, 1.0, greedy)
    return (out_LV - alone_LV).abs().sum(-1) / 2


def _near_the_best(p_LV: Tensor, lenience: float) -> Tensor:
    return (p_LV >= lenience * p_LV.max(-1, keepdim=True).values).to(p_LV.dtype)
