"""Acceptance at each position of a proposal, by teacher forcing along the target's own completion.

It is the probability that the k-th token is accepted, given that the earlier ones in the same proposal were. A run
counts it over its passes (`by_position`); here a proposal begins at each token of the completion, so no gamma is
needed.
"""

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.acceptance.agreement import Agreement

POSITIONS = 5


def accepted_by_position(text: Agreement, positions: int = POSITIONS) -> NDArray[np.float64]:
    """Expected proposals [positions, 2] that reach each position, and of these the accepted.

    One begins at each token where the draft has something to propose. At T > 0 earlier tokens are accepted with their
    probability given the completion (`Agreement.ratio`), the token itself with beta.
    """
    found = np.zeros((positions, 2))
    at_each = [text, *text.ahead] if text.ahead else [text] * positions
    for start in range(len(text.beta)):
        reached = 1.0
        for position, one in enumerate(at_each[:positions]):
            place = start + position
            if place >= len(text.beta) or one.silent[place] or reached == 0:
                break
            found[position] += reached, reached * one.beta[place]
            reached *= min(1.0, one.ratio[place])
    return found
