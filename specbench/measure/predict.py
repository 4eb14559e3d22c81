"""From agreement and cost to a speedup that can be held to account.

Three figures for a (draft, gamma), each with fewer of the paper's assumptions than the one before it:
- predicted: Theorem 3.8, E / (gamma c + 1) with E by Eq. 1 from alpha.
- calibrated_iid: E / (gamma c + v + overhead), with what a pass really costs, E still by Eq. 1.
- calibrated: tokens over the cost of the passes that these very texts need (`measure.positions`), whose neighbouring
  positions are not independent and which end.
The interval resamples prompts and rounds of the probe; it holds what chance does to alpha and to the timings, not a
machine that was busier at one time than at another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench import theory
from specbench.measure.agreement import Agreement
from specbench.measure.costs import Cost, Costs, Round
from specbench.measure.intervals import Interval, bootstrap, ratio
from specbench.measure.positions import passes

Key = tuple[str, int]  # draft, gamma
TABLES = 100  # resamples of the rounds; those of the prompts share them in turn


@dataclass(frozen=True)
class Prediction:
    """One (draft, gamma) with all that its speedup is made from."""

    draft: str
    gamma: int
    alpha: Interval
    cost: Cost
    tokens_per_pass: float  # as the texts need
    tokens_per_pass_iid: float  # Eq. 1
    drafted_per_pass: float
    predicted: float
    calibrated_iid: float
    calibrated: Interval

    def row(self) -> dict[str, Any]:
        """As plain values, for a record."""
        return {key: asdict(value) if hasattr(value, "__dict__") else value for key, value in vars(self).items()}


class Predictions:
    """All (draft, gamma) of a probe over the same texts, best first."""

    def __init__(
        self,
        found: Mapping[str, Sequence[Agreement]],
        rounds: Sequence[Round],
        max_new_tokens: int,
        resamples: int,
        seed: int,
    ) -> None:
        self.found = found
        timed = Costs(rounds)
        self.costs = timed.table()
        self.tokens_P = np.array([len(a.beta) for a in next(iter(found.values()))], float)
        stops = {draft: timed.stops(draft) for draft in found}
        self.counts = {
            (draft, gamma): np.array(
                [passes(a.kept, gamma, max_new_tokens, a.silent, stops[draft]) for a in found[draft]]
            )
            for draft, gamma in self.costs
        }  # [prompts, gamma + 1]
        self._resamples = self._resampled(timed, len(rounds), resamples, seed)
        alphas = {
            draft: bootstrap([(sum(a.beta), len(a.beta)) for a in texts], ratio, resamples, seed)
            for draft, texts in found.items()
        }
        ranked = [self._predict(key, alphas[key[0]]) for key in self.costs]
        self.ranked = sorted(ranked, key=lambda one: -one.calibrated.value)

    def _predict(self, key: Key, alpha: Interval) -> Prediction:
        draft, gamma = key
        cost, counts_PG = self.costs[key], self.counts[key]
        number = counts_PG.sum()
        by_equation = theory.expected_tokens(alpha.value, gamma)
        return Prediction(
            draft, gamma, alpha, cost,
            tokens_per_pass=float(self.tokens_P.sum() / number),
            tokens_per_pass_iid=by_equation,
            drafted_per_pass=float((counts_PG * np.arange(gamma + 1)).sum() / number),
            predicted=theory.walltime_improvement(alpha.value, gamma, cost.c),
            calibrated_iid=by_equation / cost.of_pass(gamma),
            calibrated=self._interval(self._speedup(key), lambda values: values[key]),
        )  # fmt: skip

    def times_better(self, one: Key, other: Key) -> Interval:
        """The calibrated speedup of `one` over that of `other`, on the same prompts and rounds."""
        return self._interval(self._speedup(one) / self._speedup(other), lambda values: values[one] / values[other])

    def _interval(self, value: float, of: Callable[[dict[Key, float]], float]) -> Interval:
        if not self._resamples:
            return Interval(value, None, None)
        low, high = np.nanquantile([of(values) for values in self._resamples], [0.025, 0.975])
        return Interval(value, float(low), float(high))

    def _speedup(self, key: Key) -> float:
        return float(self.tokens_P.sum() / (self.counts[key].sum(0) @ self._price_G(key, self.costs)))

    def _price_G(self, key: Key, table: Mapping[Key, Cost]) -> NDArray[np.float64]:
        """What a pass costs that drafts 0 ... gamma tokens. Between the gammas that were timed, drafting and checking
        are lines (the first drafted token of a pass costs more than the next); drafting nothing is a plain step."""
        draft, gamma = key
        known = sorted(one for name, one in table if name == draft and one <= gamma)
        drafted = np.arange(gamma + 1)
        verify_cost = np.interp(drafted, [0, *known], [1.0, *(table[draft, one].verify_cost for one in known)])
        drafting = np.interp(drafted, [0, *known], [0.0, *(one * table[draft, one].c for one in known)])
        priced: NDArray[np.float64] = drafting + verify_cost + table[key].overhead
        return priced

    def _resampled(self, timed: Costs, rounds: int, resamples: int, seed: int) -> list[dict[Key, float]]:
        """The speedups of all keys under one draw of prompts and rounds after another."""
        prompts = len(self.tokens_P)
        if prompts < 2 or rounds < 2:
            return []
        generator = np.random.default_rng(seed)
        of_prompts = generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)
        drawn_rounds = generator.integers(rounds, size=(TABLES, rounds))
        tables = [{**self.costs, **timed.table(picked)} for picked in drawn_rounds]
        tokens = of_prompts @ self.tokens_P
        counts = {key: of_prompts @ counts_PG for key, counts_PG in self.counts.items()}
        drawn = []
        for number in range(resamples):
            table = tables[number % len(tables)]
            drawn.append(
                {key: tokens[number] / (counts[key][number] @ self._price_G(key, table)) for key in self.costs}
            )
        return drawn
