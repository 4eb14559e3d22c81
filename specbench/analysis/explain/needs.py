"""The value of alpha, c or v that alone would give a certain speedup, all else as measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specbench.analysis.explain.steps import Waterfall, passes_of_texts, same_at_every_position

TINY = 1e-5
LEAST_V = 1.0  # a pass over several tokens costs no less than a step
Quantity = Literal["tokens_per_pass", "alpha", "c", "verify_cost"]


@dataclass(frozen=True)
class Need:
    """The value of one quantity that would give a speedup.

    Attributes:
        now: the value measured.
        needed: the value that would give the speedup; None where no value would.
        most: the speedup at the best value, `limit`.
        why: why neither is known, if so.
    """

    quantity: Quantity
    now: float
    needed: float | None
    limit: float
    most: float | None
    why: str = ""


def needs(found: Waterfall, speedup: float) -> list[Need]:
    """The required value of each quantity alone. c and v are means over passes."""
    made, levels = found.sample, found.levels
    totals, measured = made.totals, float(levels.measured)
    spent, tokens = float(sum(levels.costs.values())), float(levels.tokens_per_pass)
    drafted = float(totals["drafted"] / totals["passes"])
    saved = spent * (1 - measured / speedup)  # steps a pass that must go
    tokens_needed = tokens * speedup / measured
    drafting, checking = float(levels.costs["drafting"]), float(levels.costs["verification"])
    return [
        Need(
            "tokens_per_pass", tokens, tokens_needed if tokens_needed <= found.ideal else None, found.ideal,
            measured * found.ideal / tokens,
        ),
        _alpha(found, speedup),
        _cost("c", drafting / drafted, saved / drafted, 0.0, measured * spent / (spent - drafting))
        if drafted
        else Need("c", 0.0, None, 0.0, None, "nothing was drafted"),
        _cost("verify_cost", checking, saved, LEAST_V, measured * spent / (spent - checking + LEAST_V)),
    ]  # fmt: skip


def _cost(quantity: Quantity, now: float, saved: float, limit: float, most: float) -> Need:
    needed = now - saved
    return Need(quantity, now, needed if needed >= limit else None, limit, most)


def _alpha(found: Waterfall, speedup: float) -> Need:
    """The alpha needed: tokens a pass follow Eq. 1 and the ends; the factor of dependent positions is unchanged."""
    made = found.sample
    totals = made.totals
    now = float((totals["rule"] if made.ruled else totals["beta"]) / totals["scored_tokens"])
    if made.gamma is None or made.tree or made.falls_with_position:
        kind = "γ changed from pass to pass" if made.gamma is None else "acceptance differs from position to position"
        return Need("alpha", now, None, 1.0, None, kind)
    measured, tokens = float(found.levels.measured), float(found.levels.tokens_per_pass)

    def texts(alpha: float) -> float:
        return float(
            totals["ours_tokens"]
            / passes_of_texts(made.lengths, totals, same_at_every_position(np.asarray(alpha), made.depth))
        )

    all_accepted, scale = texts(1.0), tokens / texts(now)

    def gives(alpha: float) -> float:
        return measured * min(texts(alpha) * scale, all_accepted) / tokens

    limit = 0.0 if gives(0.0) > speedup else 1.0
    return Need("alpha", now, _root(lambda alpha: gives(alpha) - speedup), limit, gives(limit))


def _root(rising: Callable[[float], float]) -> float | None:
    """Where a rising function of [0, 1] reaches 0; None where it does not."""
    low, high = 0.0, 1.0
    if rising(high) < 0 or rising(low) > 0:
        return None
    while high - low > TINY:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
