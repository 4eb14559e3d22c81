"""Passes that completions of given lengths need, from a fixed acceptance probability at each position of a proposal.

Eq. 1 assumes an endless completion. In a completion that ends, the last pass emits fewer tokens. With fixed,
independent chances the passes still to come depend on the tokens still to come alone, so one table over remaining
tokens holds all completions (`expected_passes` walks a completion whose chances differ from token to token). Whether
the end of the completion can itself be drafted, or the limit on new tokens leaves no room for it, makes no difference
to the number of passes.

Shapes: G positions of a proposal, L remaining tokens; ... any leading axes, such as resamples.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def expected_by_position(chances: Floats) -> Floats:
    """Expected tokens of a pass that no end cuts, 1 + a_1 + a_1 a_2 + ...

    `a_i` [..., G] is the probability that a token is accepted if all before it were. Equation 1 if all are alpha.
    """
    expected: Floats = 1 + np.cumprod(chances, axis=-1).sum(-1)
    return expected


def passes_to_come(chances: Floats, longest: int) -> Floats:
    """Expected passes [..., longest + 1] by the number of tokens still to come, for `chances` [..., G]."""
    gamma = chances.shape[-1]
    ones = np.ones((*chances.shape[:-1], 1))
    reached = np.concatenate([ones, np.cumprod(chances, axis=-1)], axis=-1)  # [..., G + 1]
    rejected = reached[..., :-1] * (1 - chances)
    table = np.zeros((longest + 1, *chances.shape[:-1]))
    for left in range(1, longest + 1):
        drafted = min(gamma, left - 1)
        table[left] = 1.0
        for accepted in range(drafted):
            table[left] += rejected[..., accepted] * table[left - accepted - 1]
        table[left] += reached[..., drafted] * table[left - drafted - 1]  # all accepted, and the target's own token
    return np.moveaxis(table, 0, -1)
