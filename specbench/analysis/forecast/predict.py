"""Predicted speedups, from agreement and costs.

Three figures for a (draft, gamma), each with fewer of the paper's assumptions than the one before it:
- predicted: Theorem 3.8, E / (gamma c + 1) with E by Eq. 1 from alpha; for drafts that agree less the further ahead
  they draft, from the acceptance rate at each position of the passes that the completions need, and from the
  completions' lengths (`prediction` says which).
- calibrated: Theorem 3.8 with v + overhead in place of 1, E as before. A run's `speedup_calibrated` is the same.
- estimated: the baseline's steps over the cost of the passes that these very completions need
  (`analysis.forecast.walk`), whose neighbouring positions are not independent and which begin and end.
The interval resamples prompts and rounds of the probe; it covers the effect of chance on alpha and on the timings, not
a machine that was busier at one time than at another.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench import theory
from specbench.analysis.acceptance.agreement import Agreement
from specbench.analysis.costs.costs import Costs, Prices
from specbench.analysis.forecast import Walked, tokens_by_position, walk
from specbench.analysis.forecast.theorems import BY_POSITION, BY_RANK, EQUATION_1
from specbench.records.prediction import Cost, PredictionRow
from specbench.records.timed_rounds import Key, Round
from specbench.records.units import AcceptanceByRank
from specbench.stats import Interval, Scale, draw_weights, of_resamples, over_rows, ratio, ratio_of_ratios

TABLES = 100  # resamples of the rounds; the resamples of the prompts share them in turn


@dataclass(frozen=True)
class Grown:
    """A candidate whose proposals are trees of up to `nodes` tokens, the completion's last one included.

    acceptance: by rank of the child; tokens: what Proposition 3.4 of Sequoia makes of it for the mean tree.
    passes: of each completion, as `analysis.forecast.grown_trees` counts them.
    """

    tree: str
    nodes: int
    acceptance: AcceptanceByRank
    tokens: float
    passes: Sequence[NDArray[np.float64]]


@dataclass(frozen=True)
class Prediction:
    """One (draft, gamma) with everything that its speedup is made from.

    If several rules accept one draft's tokens, `draft` is the candidate's name: the draft with its rule. For a tree
    gamma is the number of its levels, and `tree` its name.
    """

    draft: str
    gamma: int
    alpha: Interval
    cost: Cost
    tokens_per_pass: float  # as the completions need
    prediction: str  # what `predicted` and `calibrated` are made from: Eq. 1, or the acceptance rate by position
    tokens_per_pass_iid: float  # by Eq. 1, or by position
    drafted_per_pass: float
    steps_per_pass: float  # what a pass costs in the mean, in target steps: some begin a completion, some draft less
    predicted: float
    calibrated: float
    estimated: Interval
    tree: str | None = None
    nodes: int | None = None  # of the tree, with the sequence's last token
    acceptance: AcceptanceByRank | None = None  # by rank of the child

    def as_row(self) -> PredictionRow:
        """A row of a ranking, to which a candidate adds its names."""
        return cast(PredictionRow, {one.name: getattr(self, one.name) for one in fields(self)})


class Predictions:
    """All (draft, gamma) of a probe over the same completions, best first.

    Candidates in `whole` test a drafted block as a whole; candidates in `trees` draft trees.
    """

    def __init__(
        self,
        found: Mapping[str, Sequence[Agreement]],
        rounds: Sequence[Round],
        max_new_tokens: int,
        resamples: int,
        seed: int,
        whole: Collection[str] = (),
        trees: Mapping[str, Grown] | None = None,
        one_cost_per_pass: bool = False,
        groups: Sequence[int] | None = None,
    ) -> None:
        """Keep what was scored and timed, and predict.

        one_cost_per_pass: the rounds are of a batch, in which all passes of a (draft, gamma) cost the same.
        groups: a number for each completion, the same for equal prompts, which count as one in intervals.
        """
        self.one_cost_per_pass = one_cost_per_pass
        self.found, self.trees, self.whole, self.most = found, trees or {}, whole, max_new_tokens
        timed = Costs(rounds)
        self.rounds = len(timed.rounds)
        self.prices = replace(timed.prices(), one_cost_per_pass=one_cost_per_pass)
        self.tokens_P = np.array([len(a.beta) for a in next(iter(found.values()))], float)
        stops = {draft: _stops(timed, draft, texts[0]) for draft, texts in found.items()}
        ahead = {draft: [ratios_ahead(text) for text in texts] for draft, texts in found.items()}
        walked: dict[Key, list[Walked]] = {
            (draft, gamma): [
                walk(text.ratio, gamma, max_new_tokens, text.silent, stops[draft], draft in whole, further)
                for text, further in zip(found[draft], ahead[draft], strict=True)
            ]
            for draft, gamma in self.prices.costs
            if draft not in self.trees
        }
        self.positions = {key: np.sum([one.positions for one in texts], 0) for key, texts in walked.items()}
        self.counts = {
            key: np.array([one.passes for one in walked[key]] if key in walked else self.trees[key[0]].passes)
            for key in self.prices.costs
        }  # [prompts, 2, gamma + 1]
        prompts = len(self.tokens_P)
        groups = range(prompts) if groups is None else groups
        self.prompts = len(set(groups))  # different ones
        if self.prompts < 2 or len(timed.rounds) < 2:
            self.weights_SP, self.drawn = np.empty((0, prompts), np.int64), []
        else:
            generator = np.random.default_rng(seed)
            self.weights_SP = draw_weights(self.prompts, resamples, generator)[:, list(groups)]
            picks = generator.integers(len(timed.rounds), size=(TABLES, len(timed.rounds)))
            self.drawn = [self._with_all(timed.prices(picked)) for picked in picks]
        self.resampled = {key: self._resampled(key) for key in self.counts}
        alphas = {
            draft: over_rows([(sum(a.beta), len(a.beta)) for a in texts], ratio, scale="probability", groups=groups)
            for draft, texts in found.items()
        }
        ranked = [self._predict(key, alphas[key[0]]) for key in self.counts]
        self.ranked = sorted(ranked, key=lambda one: -one.estimated.value)

    def _predict(self, key: Key, alpha: Interval) -> Prediction:
        draft, gamma = key
        cost, counts_2G = self.prices.costs[key], self.counts[key].sum(0)
        number = counts_2G.sum()
        by_theory = self._expected_tokens(draft, alpha.value, gamma)
        grown = self.trees.get(draft)
        return Prediction(
            draft, gamma, alpha, cost,
            tokens_per_pass=float(self.tokens_P.sum() / number),
            prediction=BY_RANK if grown else BY_POSITION if self.found[draft][0].ahead else EQUATION_1,
            tokens_per_pass_iid=by_theory,
            drafted_per_pass=float((counts_2G @ np.arange(gamma + 1)).sum() / number),
            steps_per_pass=float((counts_2G * self.prices.of_passes(key)).sum() / number),
            predicted=by_theory / (gamma * cost.c + 1),
            calibrated=by_theory / cost.of_pass(gamma),
            estimated=self._interval(self._speedup(key), self.resampled[key]),
            tree=None if grown is None else grown.tree, nodes=None if grown is None else grown.nodes,
            acceptance=None if grown is None else grown.acceptance,
        )  # fmt: skip

    def _expected_tokens(self, draft: str, alpha: float, gamma: int) -> float:
        """Equation 1, or its form by position if acceptance falls with the position, or by rank for a tree."""
        if draft in self.trees:
            return self.trees[draft].tokens
        if not self.found[draft][0].ahead:
            return theory.expected_tokens(alpha, gamma)
        reached_G, accepted_G = self.positions[draft, gamma].T
        chances = np.divide(accepted_G, reached_G, out=np.zeros(gamma), where=reached_G > 0)
        return tokens_by_position(chances.tolist(), self.tokens_P.astype(int).tolist())

    def times_better(self, one: Key, other: Key) -> Interval:
        """The ratio of the estimated speedups of `one` and `other`, on the same prompts and rounds."""
        with np.errstate(divide="ignore", invalid="ignore"):
            resampled_S = self.resampled[one] / self.resampled[other]
        return self._interval(self._speedup(one) / self._speedup(other), resampled_S)

    def error(self, key: Key, times_P4: ArrayLike) -> Interval:
        """The estimated speedup over the measured, less 1, on the same resampled prompts.

        `times_P4` holds for each prompt the seconds and tokens of the baseline, then of speculative decoding.
        """
        times_P4 = np.asarray(times_P4, float)
        off_S = self.resampled[key] / ratio_of_ratios(self.weights_SP @ times_P4) - 1
        error = self._speedup(key) / float(ratio_of_ratios(times_P4.sum(0))) - 1
        return self._interval(error, off_S, "difference")

    def _interval(self, value: float, resampled_S: NDArray[np.float64], scale: Scale = "ratio") -> Interval:
        """Over prompts and rounds, of which there may be fewer."""
        return of_resamples(value, resampled_S, min(self.prompts, self.rounds), scale)

    def _speedup(self, key: Key) -> float:
        spent = (self.counts[key] * self.prices.of_passes(key)).sum()
        return float(_baseline_P(self.tokens_P, self.prices).sum() / spent)

    def _with_all(self, prices: Prices) -> Prices:
        """`prices`, completed by the prices over all rounds if the drawn rounds have none."""
        return replace(
            prices,
            one_cost_per_pass=self.one_cost_per_pass,
            costs={**self.prices.costs, **prices.costs},
            idle={**self.prices.idle, **prices.idle},
            short={**self.prices.short, **prices.short},
        )

    def _resampled(self, key: Key) -> NDArray[np.float64]:
        """Speedup of `key` under one draw [S] of prompts and rounds after another: the rounds' few prices in turn."""
        values_S = np.empty(len(self.weights_SP))
        for number, prices in enumerate(self.drawn):
            weights = self.weights_SP[number :: len(self.drawn)]
            spent_P = (self.counts[key] * prices.of_passes(key)).sum((1, 2))
            values_S[number :: len(self.drawn)] = (weights @ _baseline_P(self.tokens_P, prices)) / (weights @ spent_P)
        return values_S


def _stops(timed: Costs, draft: str, text: Agreement) -> float | None:
    """The probability at each token after a rejection that the proposal ends there (`analysis.forecast.walk`).

    For a draft that is scored further ahead this is known.
    """
    if not text.ahead:
        return timed.stops(draft)
    return 0.0 if text.stops_at_end else None


def ratios_ahead(text: Agreement) -> list[list[float | None]] | None:
    """The ratios further ahead as `analysis.forecast.walk` takes them; None if the first token's hold for all."""
    if not text.ahead:
        return None
    return [
        [None if silent else ratio for ratio, silent in zip(one.ratio, one.silent, strict=True)] for one in text.ahead
    ]


def _baseline_P(tokens_P: NDArray[np.float64], prices: Prices) -> NDArray[np.float64]:
    """Target steps that each completion takes without a draft."""
    return tokens_P - 1 + prices.first_step
