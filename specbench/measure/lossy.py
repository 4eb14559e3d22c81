"""What a lossy rule lets through: how much more is accepted, and how far the output leaves the target.

Computed from a rule's own formulas (`acceptance.TokenRule`), position by position, along the target's own text, as
alpha is. Text written under the rule would go elsewhere. For lenience l at T > 0 the mean chance is A.5's alpha(l),
E sum_x min(p(x) / l, q(x)).

Shapes: L positions, V tokens of the vocabulary.
"""

from dataclasses import replace

from torch import Tensor

from specbench.acceptance import TokenRule
from specbench.sampling import Sampling

LENIENCES = (0.5, 0.3, 0.1)  # the paper's; at 1 alpha(l) is alpha


def before_argmax(sampling: Sampling) -> Sampling:
    """How p is adjusted for a rule that sees it before argmax: at T = 0 as at T = 1, with the run's top-k and top-p."""
    return replace(sampling, temperature=1.0) if sampling.temperature == 0 else sampling


def accepted(rule: TokenRule, p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """The chance [L] that a token drafted from q is kept."""
    return (q_LV * rule.kept(p_LV, q_LV, p_LV)).sum(-1)


def emitted(rule: TokenRule, p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """The distribution [L, V] of the token that comes out at a position where one was drafted."""
    kept_LV = q_LV * rule.kept(p_LV, q_LV, p_LV)
    return kept_LV + (1 - kept_LV.sum(-1, keepdim=True)) * rule.instead(p_LV, q_LV)


def strayed(rule: TokenRule, p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """Total variation [L] between what comes out and what the target alone would give."""
    return (emitted(rule, p_LV, q_LV) - rule.alone(p_LV)).abs().sum(-1) / 2
