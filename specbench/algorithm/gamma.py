"""How many tokens to draft next: a constant, or a policy that depends on past passes.

A `Gamma` is a policy; `start()` returns its state for one completion, which is updated after each pass. So gamma only
depends on past passes: it is fixed before any token of the proposal is drawn, and the output keeps the target's
distribution. (A draft may end its proposal earlier, depending on the tokens drawn: `methods.model.draft`.)
A `DraftingPlan` is the policy that a run chose, as plain values; `policy_of` makes it one.

>>> Adaptive(alpha=0.8, prices={1: 1.2, 3: 1.4, 5: 1.6}).start().next()
5
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from specbench.config.keys import MAX_GAMMA
from specbench.records.prediction import DraftingPlan
from specbench.theory import expected_tokens

THOUSAND = 1000


class GammaState(Protocol):
    """The state of a policy for one completion."""

    def next(self) -> int:
        """Tokens to draft in the next pass."""

    def learn(self, drafted: int, accepted: int) -> None:
        """Update the state after a pass: `accepted` of `drafted` tokens were accepted."""


class Gamma(Protocol):
    """A policy. Its state is reset for each completion, so that completions do not depend on earlier ones."""

    @property
    def picks(self) -> Sequence[int]:
        """The values of gamma that it picks from."""

    def start(self) -> GammaState: ...


@dataclass(frozen=True)
class Constant:
    """The paper's constant gamma. It has no state, so it is its own state."""

    gamma: int

    @property
    def picks(self) -> Sequence[int]:
        return (self.gamma,)

    def start(self) -> "Constant":
        return self

    def next(self) -> int:
        return self.gamma

    def learn(self, drafted: int, accepted: int) -> None:
        """Nothing changes."""


@dataclass(frozen=True)
class Adaptive:
    """The gamma with the most expected tokens for its price, at an estimate of alpha that follows each completion.

    `prices[gamma]` is the cost of a pass, in any unit; only these gammas are picked. `alpha` is the initial estimate
    and counts as `weight` tested tokens. Tested tokens are the accepted tokens and the first rejected token; later
    tokens carry no information. So the estimate is the mean of a beta posterior for a run of successes censored at
    gamma.
    """

    alpha: float
    prices: Mapping[int, float]
    weight: float = 20.0

    @property
    def picks(self) -> Sequence[int]:
        return sorted(self.prices)

    def start(self) -> "AdaptiveState":
        return AdaptiveState(self, self.alpha * self.weight, self.weight)

    def best(self, alpha: float) -> int:
        """The smallest gamma of the best expected tokens per price, to a thousandth of alpha."""
        return self._table[round(alpha * THOUSAND)]

    @cached_property
    def _table(self) -> list[int]:
        """The best gamma for each thousandth of alpha, so that a choice costs nothing."""
        gammas = sorted(self.prices)
        return [
            max(gammas, key=lambda gamma: expected_tokens(thousandth / THOUSAND, gamma) / self.prices[gamma])
            for thousandth in range(THOUSAND + 1)
        ]


@dataclass(frozen=True)
class Heuristic:
    """The schedule of transformers' assisted generation: gamma + 2 after full acceptance, otherwise gamma - 1.

    gamma is from 1 to `most`. A pass that drafted nothing changes nothing, and each completion starts anew
    ('heuristic_transient' there). Theirs starts at 20, too high for short completions; ours at
    `first`.
    """

    most: int
    first: int = 5

    @property
    def picks(self) -> Sequence[int]:
        return range(1, self.most + 1)

    def start(self) -> "HeuristicState":
        return HeuristicState(self.most, min(self.first, self.most))


@dataclass
class HeuristicState:
    """The gamma of the next pass of one completion."""

    most: int
    gamma: int

    def next(self) -> int:
        return self.gamma

    def learn(self, drafted: int, accepted: int) -> None:
        if drafted:
            self.gamma = min(self.gamma + 2, self.most) if accepted == drafted else max(self.gamma - 1, 1)


@dataclass
class AdaptiveState:
    """Accepted and tested tokens of one completion so far, added to the initial weight."""

    policy: Adaptive
    accepted: float
    tested: float

    def next(self) -> int:
        return self.policy.best(self.accepted / self.tested)

    def learn(self, drafted: int, accepted: int) -> None:
        self.accepted += accepted
        self.tested += accepted + (accepted < drafted)


def policy_of(plan: DraftingPlan) -> Gamma:
    """The policy that chooses gamma before each pass."""
    if (constant := plan.gamma or plan.most) is not None:
        return Constant(constant)
    if plan.alpha is None or plan.prices is None:
        return Heuristic(MAX_GAMMA)
    return Adaptive(plan.alpha, plan.prices)
