"""The least cost of a completion's passes if each pass picks its draft and gamma in hindsight: bounds on every rule.

A rule for gamma or a router of drafts chooses before a pass from what is known then. Here the completion itself is
known, so that no choice among the same options is cheaper: by dynamic programming from the end, each place takes the
option with the least expected cost of this pass and the following ones. Acceptance draws remain unknown, as in
`analysis.forecast.walk`, whose expectations these are with a single option. At T = 0 nothing is drawn, and this also
bounds rules that end a proposal while it is drafted (SpecDec++, DISCO). At T > 0 such a rule sees the drafted tokens,
which this bound does not know.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.acceptance.agreement import Agreement
from specbench.analysis.forecast import proposed
from specbench.analysis.forecast.predict import ratios_ahead


@dataclass(frozen=True)
class Option:
    """An option of a pass: draft up to `gamma` tokens with the draft that agrees with the target as `text` says.

    `costs` [2, gamma + 1] are the costs of a pass that drafts 0, 1, ... tokens; the first row if it begins the
    completion.
    """

    text: Agreement
    gamma: int
    costs: NDArray[np.float64]


def least_cost(options: Sequence[Option], most: int) -> float:
    """The least expected cost of the passes of a completion, of at most `most` new tokens, with a choice in each."""
    length = len(options[0].text.ratio)
    to_come = [0.0] * (length + 1)  # from each token on
    known = [(one, ratios_ahead(one.text)) for one in options]
    for start in reversed(range(length)):
        to_come[start] = min(_of_pass(one, ahead, start, most, to_come) for one, ahead in known)
    return to_come[0]


def _of_pass(
    option: Option, ahead: list[list[float | None]] | None, start: int, most: int, to_come: Sequence[float]
) -> float:
    """The expected cost of a pass that begins at `start`, and of all after it."""
    text, length = option.text, len(to_come) - 1
    room = max(0, min(option.gamma, most - start - 1))
    drafted = 0 if text.silent and text.silent[start] else proposed(start, room, ahead)
    reached, cost = 1.0, float(option.costs[min(start, 1), drafted])
    for place in range(start, min(start + drafted, length)):
        here = (ahead[place - start - 1][place] if ahead and place > start else text.ratio[place]) or 0.0
        kept = reached * min(1.0, here)
        cost += (reached - kept) * to_come[place + 1]
        reached = kept
    return cost + (reached * to_come[start + drafted + 1] if start + drafted < length else 0.0)
