"""The paper's theorems applied to a run's own alpha, c and v.

Eq. 1 has one alpha for all positions of a proposal. For a draft that is accepted less often the further ahead it drafts
(heads that predict several tokens at once, copies that continue from one place), Eq. 1 is an upper bound and not a
prediction. There the acceptance at each position replaces alpha: 1 + a_1 + a_1 a_2 + ... instead of 1 + alpha + alpha^2
+ ..., as far as a pass has room: near the end of a completion it drafts fewer tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from specbench import theory
from specbench.analysis.acceptance.by_position import reached_and_accepted
from specbench.analysis.costs import PassCosts
from specbench.analysis.forecast import ExpectedOfRows
from specbench.records.numbers import Counted, Predicted, Throughput
from specbench.records.run_record import PromptRecord

EQUATION_1, BY_ROW, BY_POSITION, BY_RANK = "Eq. 1", "Eq. 1 by row", "by position", "by rank"
UNPREDICTED = cast(Predicted, dict.fromkeys(Predicted.__annotations__))  # gamma changed: the theorems have one gamma


@dataclass(frozen=True)
class Asked:
    """Acceptance by position, and for how many tokens the passes of a run had room.

    Attributes:
        accepted: the share accepted at each position, of the passes that reached it and had room for it.
        rooms: how many passes had room for 0, 1, ... draft tokens.
    """

    accepted: list[float]
    rooms: list[int]

    @property
    def tokens(self) -> float:
        """Expected tokens of the mean pass, each with the room that it had."""
        expected = np.concatenate([[1.0], 1 + np.cumsum(np.cumprod(self.accepted))])
        return float(np.average(expected, weights=self.rooms))


def acceptance_when_asked(prompts: Sequence[PromptRecord], gamma: int) -> Asked:
    """The acceptance at each of `gamma` positions of the passes that reached it and had room for it.

    A token that was not proposed counts as rejected. The last token of a completion does not count: accepted or not, it
    saves no pass.
    """
    counts, rooms = np.zeros((gamma, 2), np.int64), [0] * (gamma + 1)
    for prompt in prompts:
        left = len(prompt["speculative"].tokens)
        for a_pass in prompt["speculative"].passes:
            asked = min(gamma, left - 1)
            counts[:asked] += reached_and_accepted(a_pass, asked, asked)
            rooms[asked] += 1
            left -= a_pass.emitted
    return Asked([float(accepted / reached) if reached else 0.0 for reached, accepted in counts], rooms)


def by_equation_1(alpha: float, gamma: int, summary: Counted) -> Predicted:
    """Theorems 3.8 and 3.11, and Theorem 3.8 with v + overhead in place of 1 (`speedup_calibrated`)."""
    c, verify_cost = summary["c"], summary["verify_cost"]
    calibrated = None
    if c is not None and verify_cost is not None:
        calibrated = theory.walltime_improvement(alpha, gamma, c, verify_cost + summary["overhead"])
    return {
        "prediction": EQUATION_1,
        "tokens_per_pass_predicted": theory.expected_tokens(alpha, gamma),
        "speedup_predicted": None if c is None else theory.walltime_improvement(alpha, gamma, c),
        "speedup_calibrated": calibrated,
        "operations_predicted": theory.operations_increase(alpha, gamma, summary["c_hat"]),
    }


def by_rows(expected: ExpectedOfRows, rates: Throughput, summary: Counted) -> Predicted:
    """Theorems 3.8 and 3.11 for a batch, in which each row has its own alpha and end.

    c and v are of passes and steps of all rows: c(B) and v(B, gamma) = T_p(B (gamma + 1)) / T_p(B). If a pass has
    fewer rows than a step of the target alone, as among the last prompts, it emits proportionally less.
    """
    verify_cost, drafting = summary["verify_cost"], expected.drafted * (summary["c"] or 0.0)
    tokens = expected.tokens * rates["occupancy"] / rates["occupancy_baseline"]
    calibrated = None if verify_cost is None else tokens / (drafting + verify_cost + summary["overhead"])
    return {
        "prediction": BY_ROW,
        "tokens_per_pass_predicted": expected.tokens,
        "speedup_predicted": tokens / (drafting + 1),
        "speedup_calibrated": calibrated,
        "operations_predicted": (expected.drafted * (summary["c_hat"] + 1) + 1) / expected.tokens,
    }


def by_position(asked: Asked, costs: PassCosts, summary: Counted) -> Predicted:
    """Predictions from the acceptance at each position, for the room of each pass and the mean number of draft tokens.

    Calibrated with the measured cost of these passes, since most of them may draft less than gamma. This is in-sample,
    a check of the decomposition and no forecast: `asked` is also counted over these passes, for a record has the
    acceptance of later positions by teacher forcing neither for heads nor for copies.
    """
    tokens = asked.tokens
    speedup = tokens / (summary["drafted_per_pass"] * (summary["c"] or 0.0) + 1)
    return _from_passes(BY_POSITION, tokens, speedup, costs, summary)


def by_rank(tokens: float, depth: float, costs: PassCosts, summary: Counted) -> Predicted:
    """Predictions for passes over trees of `depth` levels in the mean.

    `tokens` are expected along the target's own completions from the acceptance by rank.
    """
    c = summary["c"]
    speedup = None if c is None else theory.tree_improvement(tokens, depth, c)
    return _from_passes(BY_RANK, tokens, speedup, costs, summary)


def _from_passes(
    prediction: str, tokens: float, speedup: float | None, costs: PassCosts, summary: Counted
) -> Predicted:
    drafted = summary["drafted_per_pass"]
    return {
        "prediction": prediction,
        "tokens_per_pass_predicted": tokens,
        "speedup_predicted": speedup,
        "speedup_calibrated": tokens / costs.total,
        "operations_predicted": (drafted * summary["c_hat"] + drafted + 1) / tokens,
    }
