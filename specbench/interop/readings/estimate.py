"""alpha from counts of passes, with an interval; tokens per pass; the best gamma by theory; two files side by side.

A pass of gamma tokens accepts n of them with probability alpha^n (1 - alpha) for n < gamma, and alpha^gamma for
n = gamma (the paper's section 3.1, positions independent). Over passes with A accepted tokens in all, R of which ended
in a rejection, the likelihood is alpha^A (1 - alpha)^R, whatever each pass drafted: the maximum lies at A / (A + R).

If a file has only sums, R is unknown. Then alpha is the value at which the expected number of accepted tokens per pass
(Eq. 1, less 1) equals the measured one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.interop.readings.reading import Ends, Reading, Tally, together
from specbench.stats import FEW_PROMPTS, over_rows, ratio
from specbench.theory import expected_tokens, walltime_improvement

CHI2_95 = 3.841458820694124  # the 0.95 quantile of chi squared with one degree of freedom
NORMAL_95 = 1.959963984540054
LIKELIHOOD, MOMENTS = "maximum likelihood", "moments"
BY_TOKEN = "tokens taken to be independent, which makes it too narrow"
BY_REQUEST = "over {} requests"
BY_FEW = "over requests, of which there are fewer than 10, and over independent tokens: the wider"
LARGEST_GAMMA = 64


@dataclass(frozen=True)
class Estimate:
    """Estimates from the counts of one file, with the definitions of this project.

    Attributes:
        alpha, low, high: the acceptance rate and its 95% interval; None if the file does not suffice.
        method: how alpha was estimated; `interval`: what the interval assumes to be independent.
        alpha_ends: where ends of completions are cut and each looks like a rejection, alpha if none of them was a
            rejection: the truth lies between.
        passes, undrafted: passes with a draft, and passes for which nothing was drafted.
        rate, length: accepted over drafted, and tokens per pass with the token that the target adds; both pooled, the
            second over all passes.
        mean_rate, mean_length: the means of these over requests, which some tools print.
        predicted: tokens per pass by Eq. 1 at `alpha` and `gamma`, the mean number of drafted tokens.
        conditional, marginal: acceptance at each position, given that it was reached, and of all passes.
    """

    requests: int | None
    passes: int | None
    undrafted: int
    gamma: float | None
    alpha: float | None
    low: float | None
    high: float | None
    method: str | None
    interval: str | None
    alpha_ends: float | None
    rate: float | None
    length: float | None
    mean_rate: float | None
    mean_length: float | None
    predicted: float | None
    conditional: list[float]
    marginal: list[float]


@dataclass(frozen=True)
class Best:
    """The gamma with the highest walltime improvement by Theorem 3.8."""

    gamma: int
    speedup: float


@dataclass(frozen=True)
class Difference:
    """The difference in alpha between two files, with a 95% interval."""

    value: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        return self.low > 0 or self.high < 0


def estimate(reading: Reading, gamma: int | None = None) -> Estimate | None:
    """Estimates from the counts of `reading`; None if it has none.

    `gamma`: tokens drafted in a pass, which the user gives if the file lacks them.
    """
    requests = [_with_gamma(one, gamma) for one in reading.requests]
    if not requests:
        return None
    tally = together(requests)
    mean_gamma = tally.drafted_per_pass
    alpha, low, high, method, interval = _alpha(requests if reading.by_request else [tally], tally, mean_gamma)
    rates = [one.rate for one in requests if one.rate is not None]
    lengths = [one.length for one in requests if one.length is not None]
    several = reading.by_request and len(requests) > 1
    return Estimate(
        requests=len(requests) if reading.by_request else None,
        passes=tally.passes,
        undrafted=tally.undrafted,
        gamma=mean_gamma,
        alpha=alpha,
        low=low,
        high=high,
        method=method,
        interval=interval,
        alpha_ends=_without_ends(tally, len(requests), reading.ends) if reading.by_request else None,
        rate=tally.rate,
        length=tally.length,
        mean_rate=sum(rates) / len(rates) if several and rates else None,
        mean_length=sum(lengths) / len(lengths) if several and lengths else None,
        predicted=None if alpha is None or mean_gamma is None else _predicted(alpha, mean_gamma, tally),
        conditional=[
            accepted / reached for reached, accepted in zip(tally.reached_at, tally.accepted_at, strict=True) if reached
        ],
        marginal=[accepted / tally.passes for accepted in tally.accepted_at if tally.passes],
    )


def _predicted(alpha: float, gamma: float, tally: Tally) -> float:
    """Tokens per pass by Eq. 1; a pass without a draft has one token."""
    drafting = 1.0 if not tally.passes else tally.passes / (tally.passes + tally.undrafted)
    return 1 + expected_accepted(alpha, gamma) * drafting


def best_gamma(alpha: float, c: float, verify_cost: float = 1.0, at: float = 1.0) -> Best:
    """The gamma from 1 to 64 with the highest speedup by Theorem 3.8.

    `verify_cost`, the ratio of the time of a pass over `at` + 1 tokens to the time of a step, is assumed to grow
    linearly in the drafted tokens.
    """

    def speedup(gamma: int) -> float:
        return walltime_improvement(alpha, gamma, c, 1 + (verify_cost - 1) * gamma / at)

    gamma = max(range(1, LARGEST_GAMMA + 1), key=speedup)
    return Best(gamma, speedup(gamma))


def difference(first: Estimate, second: Estimate) -> Difference | None:
    """alpha of `first` less alpha of `second`, its interval from theirs (Newcombe, Statistics in Medicine 17, 1998)."""
    if first.alpha is None or first.low is None or first.high is None:
        return None
    if second.alpha is None or second.low is None or second.high is None:
        return None
    value = first.alpha - second.alpha
    below = math.hypot(first.alpha - first.low, second.high - second.alpha)
    above = math.hypot(first.high - first.alpha, second.alpha - second.low)
    return Difference(value, value - below, value + above)


def expected_accepted(alpha: float, gamma: float) -> float:
    """Expected accepted tokens of a pass, Eq. 1 less 1; a mean gamma between two whole numbers is a mixture of both."""
    below = math.floor(gamma)
    share = gamma - below
    return (1 - share) * expected_tokens(alpha, below) + share * expected_tokens(alpha, below + 1) - 1


def likelihood_interval(accepted: int, rejections: int) -> tuple[float, float]:
    """The alphas that a likelihood ratio test at 5% does not reject."""
    trials = accepted + rejections
    best = accepted / trials

    def drop(alpha: float) -> float:
        return (
            2 * (_log_likelihood(best, accepted, rejections) - _log_likelihood(alpha, accepted, rejections)) - CHI2_95
        )

    low = 0.0 if accepted == 0 else _solve(lambda alpha: -drop(alpha), 0.0, best)
    high = 1.0 if rejections == 0 else _solve(drop, best, 1.0)
    return low, high


def _alpha(
    requests: Sequence[Tally], tally: Tally, gamma: float | None
) -> tuple[float | None, float | None, float | None, str | None, str | None]:
    """alpha, its bounds, how it was found and what its interval rests on."""
    interval = BY_REQUEST.format(len(requests)) if len(requests) >= FEW_PROMPTS else BY_FEW
    if len(requests) == 1:
        interval = BY_TOKEN
    bounds = []  # of tokens taken to be independent, and over requests
    if tally.rejections is not None and (trials := tally.accepted + tally.rejections):
        alpha, method = tally.accepted / trials, LIKELIHOOD
        bounds.append(likelihood_interval(tally.accepted, tally.rejections))
        columns = [(one.accepted, one.accepted + (one.rejections or 0)) for one in requests]
    elif gamma is not None and tally.passes:
        mean = tally.accepted / tally.passes
        alpha, method = alpha_of(mean, gamma), MOMENTS
        half = NORMAL_95 * math.sqrt(_variance(alpha, gamma) / tally.passes)
        bounds.append((alpha_of(mean - half, gamma), alpha_of(mean + half, gamma)))
        columns = [(one.accepted, one.passes or 0) for one in requests]
    else:
        return None, None, None, None, None
    if len(requests) > 1:
        by_token = method == LIKELIHOOD or gamma is None
        found = over_rows(columns, ratio, scale="probability" if by_token else "ratio")
        if found.low is None or found.high is None:  # a single request holds all that was drafted
            interval = BY_TOKEN
        elif by_token or gamma is None:
            bounds.append((found.low, found.high))
        else:
            bounds.append((alpha_of(found.low, gamma), alpha_of(found.high, gamma)))
        if len(bounds) > 1 and len(requests) >= FEW_PROMPTS:
            del bounds[0]
    return alpha, min(low for low, _ in bounds), max(high for _, high in bounds), method, interval


def _with_gamma(tally: Tally, gamma: int | None) -> Tally:
    """`tally` completed by the counts that follow if each pass drafted `gamma` tokens."""
    if gamma is None or (tally.passes is not None and tally.drafted is not None):
        return tally
    if tally.drafted is not None:
        return Tally(tally.accepted, tally.drafted, round(tally.drafted / gamma))
    return Tally(tally.accepted, tally.passes * gamma, tally.passes) if tally.passes is not None else tally


def _without_ends(tally: Tally, requests: int, ends: Ends) -> float | None:
    """alpha if in no request the last pass ended in a rejection."""
    if ends != "out" or tally.rejections is None or not tally.accepted:
        return None
    return tally.accepted / (tally.accepted + max(0, tally.rejections - requests))


def alpha_of(mean: float, gamma: float) -> float:
    """The alpha at which a pass is expected to accept `mean` tokens; 0 or 1 beyond its range."""
    if mean <= 0:
        return 0.0
    if mean >= gamma:
        return 1.0
    return _solve(lambda alpha: expected_accepted(alpha, gamma) - mean, 0.0, 1.0)


def _variance(alpha: float, gamma: float) -> float:
    """Variance of the accepted tokens of a pass of `gamma`, rounded: E n^2 = sum over i of (2i - 1) alpha^i."""
    places = range(1, max(1, round(gamma)) + 1)
    mean = sum(alpha**place for place in places)
    return max(0.0, sum((2 * place - 1) * alpha**place for place in places) - mean**2)


def _log_likelihood(alpha: float, accepted: int, rejections: int) -> float:
    if (alpha <= 0 and accepted) or (alpha >= 1 and rejections):
        return -math.inf
    return (accepted * math.log(alpha) if accepted else 0.0) + (rejections * math.log1p(-alpha) if rejections else 0.0)


def _solve(rising: Callable[[float], float], low: float, high: float) -> float:
    """The root of the increasing function `rising` between `low` and `high`, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
