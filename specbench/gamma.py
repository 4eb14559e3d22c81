"""How many tokens to draft next: the same number always, or one that follows what passes so far have shown.

A `Gamma` is a policy; `start()` gives its state for one text. The state learns from each pass when it is over, so a
choice depends on the past alone: the next proposal is still accepted or rejected by Algorithm 1 at a gamma that was
fixed before a token of it was drawn, and the text keeps the target's distribution. (A draft may end its proposal
sooner, by what it has drawn: `drafts.model`.) `GammaChoice` is the policy that a run chose, as plain values. Knows no
models and no clocks.

>>> Adaptive(alpha=0.8, prices={1: 1.2, 3: 1.4, 5: 1.6}).start().next()
5
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from specbench.config.ranges import MAX_GAMMA
from specbench.records.schema import AcceptanceByRank, GammaRecord, PredictionRow
from specbench.theory import expected_tokens

THOUSAND = 1000


class GammaState(Protocol):
    """A policy at work on one text."""

    def next(self) -> int:
        """Tokens to draft in the next pass."""
        ...

    def learn(self, drafted: int, accepted: int) -> None:
        """A pass is over: `accepted` of `drafted` tokens were accepted."""
        ...


class Gamma(Protocol):
    """A policy. A text starts afresh, so that it does not depend on the texts before it."""

    @property
    def picks(self) -> Sequence[int]:
        """The numbers that it picks from."""
        ...

    def start(self) -> GammaState: ...


@dataclass(frozen=True)
class Constant:
    """The paper's fixed gamma. It has nothing to learn, and so is its own state."""

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
    """The gamma with the most expected tokens for its price, at an estimate of alpha that each text updates.

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
    """transformers' schedule for assisted generation: two more after full acceptance, otherwise one less.

    gamma is from 1 to `most`. A pass that drafted nothing changes nothing, and each completion starts anew
    ('heuristic_transient' there). Theirs begins with 20, from which a short completion hardly comes down; ours with
    `first`.
    """

    most: int
    first: int = 5

    @property
    def picks(self) -> Sequence[int]:
        return range(1, self.most + 1)

    def start(self) -> "HeuristicState":
        return HeuristicState(self)


class HeuristicState:
    """The gamma of the next pass of one text."""

    def __init__(self, policy: Heuristic) -> None:
        self.policy = policy
        self.gamma = min(policy.first, policy.most)

    def next(self) -> int:
        return self.gamma

    def learn(self, drafted: int, accepted: int) -> None:
        if drafted:
            self.gamma = min(self.gamma + 2, self.policy.most) if accepted == drafted else max(self.gamma - 1, 1)


class AdaptiveState:
    """Accepted and tested tokens of one text so far, added to the initial weight."""

    def __init__(self, policy: Adaptive) -> None:
        self.policy = policy
        self.accepted = policy.alpha * policy.weight
        self.judged = policy.weight

    def next(self) -> int:
        return self.policy.best(self.accepted / self.judged)

    def learn(self, drafted: int, accepted: int) -> None:
        self.accepted += accepted
        self.judged += accepted + (accepted < drafted)


@dataclass(frozen=True)
class GammaChoice:
    """The choice that `gamma=` of a config was resolved to.

    The journal and the record hold it as plain values, so that a resumed run drafts as it began and a reader sees why.

    Attributes:
        requested: as tables show it: the number or policy of the config, and when the draft ends a proposal earlier.
        gamma: the constant number; None where it changes from pass to pass.
        most: the most tokens of a pass, where `gamma` is None because the draft ends proposals by its own confidence;
            or the most levels of its trees.
        alpha, prices: the initial estimates of `Adaptive`.
        probe: a row for each gamma that was tried, best first; None without a probe.
        acceptance: the acceptance by rank that the shape of a tree was made from; a list for each level where they
            differ.
        size, verify, level: the size chosen for a tree, and the costs that it was chosen by: v(n), and that of a level.
    """

    requested: int | str
    gamma: int | None
    most: int | None = None
    alpha: float | None = None
    prices: Mapping[int, float] | None = None
    probe: list[PredictionRow] | None = None
    acceptance: AcceptanceByRank | None = None
    size: int | None = None
    verify: Mapping[int, float] | None = None
    level: float | None = None

    @property
    def policy(self) -> Gamma:
        """The policy that chooses gamma before each pass."""
        if (constant := self.gamma or self.most) is not None:
            return Constant(constant)
        if self.alpha is None or self.prices is None:
            return Heuristic(MAX_GAMMA)
        return Adaptive(self.alpha, self.prices)

    def to_json(self) -> GammaRecord:
        """Plain values, without those that are not set."""
        values: GammaRecord = {"requested": self.requested, "gamma": self.gamma}
        if self.most is not None:
            values["most"] = self.most
        if self.alpha is not None:
            values["alpha"] = self.alpha
        if self.prices is not None:
            values["prices"] = {str(gamma): price for gamma, price in self.prices.items()}
        if self.probe is not None:
            values["probe"] = self.probe
        if self.acceptance is not None:
            values["acceptance"] = self.acceptance
        if self.size is not None and self.verify is not None and self.level is not None:
            values["size"], values["level"] = self.size, self.level
            values["verify"] = {str(size): cost for size, cost in self.verify.items()}
        return values

    @classmethod
    def from_json(cls, values: GammaRecord) -> "GammaChoice":
        prices = {int(gamma): price for gamma, price in values.get("prices", {}).items()}
        return cls(
            values["requested"], values["gamma"], values.get("most"), values.get("alpha"), prices or None,
            values.get("probe"), values.get("acceptance"), values.get("size"),
            {int(size): cost for size, cost in values.get("verify", {}).items()} or None, values.get("level"),
        )  # fmt: skip
