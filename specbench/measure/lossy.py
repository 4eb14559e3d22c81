"""Lossy rules: their acceptance probability, and the total variation of their output from the target's distribution.

Computed from a rule's own formulas (`acceptance.TokenRule`), position by position, along the target's own completion,
as alpha is. A completion under the rule would differ. For lenience l at T > 0 the mean acceptance probability is A.5's
alpha(l), E sum_x min(p(x) / l, q(x)).

Shapes: L positions, V tokens of the vocabulary.
"""

from torch import Tensor

from specbench.acceptance import TokenRule

LENIENCES = (0.5, 0.3, 0.1)  # the paper's; at 1 alpha(l) is alpha


def accepted(rule: TokenRule, p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """The probability [L] that a token drawn from q is accepted."""
    # fp32 rows add up to 1 within 1e-6.
    return (q_LV * rule.accept_probability(p_LV, q_LV, p_LV)).sum(-1).clamp(max=1.0)


def emitted(rule: TokenRule, p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """The distribution [L, V] of the token emitted at a position where one was drafted."""
    accepted_LV = q_LV * rule.accept_probability(p_LV, q_LV, p_LV)
    return accepted_LV + (1 - accepted_LV.sum(-1, keepdim=True)) * rule.recovered(p_LV, q_LV)


def total_variation(rule: TokenRule, p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """Total variation [L] between the token emitted under the rule and the target's own."""
    return (emitted(rule, p_LV, q_LV) - rule.bonus(p_LV)).abs().sum(-1) / 2
