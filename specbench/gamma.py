"""How many tokens to draft next: the same number always, or one that follows what passes so far have shown.

A `Gamma` is a policy; `start()` gives its state for one text. The state is told of each pass when it is over, so a
choice rests on the past alone: the next proposal is still accepted or rejected by Algorithm 1 at a gamma that was
fixed before a token of it was drawn, and the text keeps the target's distribution. (A draft may end its proposal
sooner, by what it has drawn: `drafts.model`.) Knows no models and no clocks.

>>> Adaptive(alpha=0.8, prices={1: 1.2, 3: 1.4, 5: 1.6}).start().next()
5
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from specbench.theory import expected_tokens

THOUSAND = 1000


class GammaState(Protocol):
    """A policy at work on one text."""

    def next(self) -> int:
        """Tokens to draft in the next pass."""
        ...

    def learn(self, drafted: int, accepted: int) -> None:
        """A pass is over: `accepted` of `drafted` tokens stayed."""
        ...


class Gamma(Protocol):
    """A policy. A text starts afresh, so that it does not depend on the texts before it."""

    def start(self) -> GammaState: ...


@dataclass(frozen=True)
class Constant:
    """The paper's fixed gamma. It has nothing to learn, and so is its own state."""

    gamma: int

    def start(self) -> "Constant":
        return self

    def next(self) -> int:
        return self.gamma

    def learn(self, drafted: int, accepted: int) -> None:
        """Nothing changes."""


@dataclass(frozen=True)
class Adaptive:
    """The gamma with the most expected tokens for its price, at an estimate of alpha that each text updates.

    `prices[gamma]` is what a pass costs, in any unit; only these gammas are picked. `alpha` is the estimate to begin
    with and counts as `weight` judged tokens. A judged token is one that was accepted or the one that was rejected:
    what lies behind a rejection tells nothing. So the estimate is the mean of a beta posterior, that of a run of
    successes cut off at gamma.
    """

    alpha: float
    prices: Mapping[int, float]
    weight: float = 20.0

    def start(self) -> "AdaptiveState":
        return AdaptiveState(self)

    def best(self, alpha: float) -> int:
        """The smallest gamma of the best expected tokens per price, to a thousandth of alpha."""
        return self._table[round(alpha * THOUSAND)]

    @cached_property
    def _table(self) -> list[int]:
        """The best at each thousandth: a choice must cost nothing beside a pass."""
        gammas = sorted(self.prices)
        return [
            max(gammas, key=lambda gamma: expected_tokens(thousandth / THOUSAND, gamma) / self.prices[gamma])
            for thousandth in range(THOUSAND + 1)
        ]


@dataclass(frozen=True)
class Heuristic:
    """transformers' schedule for assisted generation: two more behind a pass whose tokens all stayed, else one less,
    from 1 to `most`.

    A pass that drafted nothing changes nothing. A text starts afresh (there: 'heuristic_transient'). Theirs begins with
    20, from which a short text hardly comes down; ours with `first`.
    """

    most: int
    first: int = 5

    def start(self) -> "HeuristicState":
        return HeuristicState(self)


class HeuristicState:
    """What the next pass of one text will draft."""

    def __init__(self, policy: Heuristic) -> None:
        self.policy = policy
        self.gamma = min(policy.first, policy.most)

    def next(self) -> int:
        return self.gamma

    def learn(self, drafted: int, accepted: int) -> None:
        if drafted:
            self.gamma = min(self.gamma + 2, self.policy.most) if accepted == drafted else max(self.gamma - 1, 1)


class AdaptiveState:
    """Accepted and judged tokens of one text so far, on top of what it began with."""

    def __init__(self, policy: Adaptive) -> None:
        self.policy = policy
        self.accepted = policy.alpha * policy.weight
        self.judged = policy.weight

    def next(self) -> int:
        return self.policy.best(self.accepted / self.judged)

    def learn(self, drafted: int, accepted: int) -> None:
        self.accepted += accepted
        self.judged += accepted + (accepted < drafted)
