"""Tests that sampled completions were drawn from the target: four martingales, from the sums of `evidence`.

Let p_i be the target's standardised distribution at token x_i, after the tokens so far. A score f_i that is fixed
before x_i is drawn and has sum_x p_i(x) f_i(x) = 0 gives a martingale if tokens are drawn from p. With v_i = sum_x
p_i(x) f_i(x)^2,

    z = sum_i f_i(x_i) / sqrt(sum_i v_i)

is then standard normal (martingale central limit theorem), whatever the completions, their lengths and where they end.
The scores, of which the first gives `proof_z`:

`likelihood`
    f(x) = log p(x) + H(p): are tokens as likely as they should be?
`draft`
    f(x) = min(1, q(x) / p(x)) - beta, with the draft's q: are there as many tokens that the draft likes? What is wrong
    in accepting, in the residual or in q moves the completion towards the draft or away from it, so that this sees it
    in the fewest tokens. It is a martingale for any q, even a wrong q.
`echo`
    w_i f(x_i), with the f of `draft` and w_i in [-1, 1] the z of the completion before x_i, cut to that range. A second
    moment: in the square of a completion's sum the products of its terms average 0. Sees faults that change no mean,
    such as one random number that serves for a whole completion. The cut keeps a single unusual completion from
    deciding.
`order`
    f(x) = (sum of p over tokens before x in the vocabulary) + p(x) / 2 - 1/2: a token is drawn by inverting the
    distribution function, and this is the uniform number that the draw would have used, less its mean. Sees random
    numbers that are used twice.

A completion fails if in one of the four |z| > 4 and the p-value agrees, that is, lies below the p-value of 4 standard
deviations (6.3e-5). For long completions the two say the same. For few tokens the tail of log p is longer than the
normal tail: on 10 tokens of the shipped translation model |z| > 4 has a probability of 1.4e-3. So p-values follow the
Pearson type III law (a shifted gamma law) with the skewness of the sum, sum_i E f_i^3 / (sum_i v_i)^(3/2). With both
conditions a right run fails less often than once in 10,000 in each of the four. A token that p gives no probability at
all is a failure by itself, unless rounding explains it (`analysis.proof.evidence`).

At T = 0 every token must be the target's best token, except for rounding (`analysis.proof.departures`). If none of n
tokens departs, fewer than 1 - 0.05^(1/n) of a fault's tokens differ (95%). The power of the tests at T > 0 is the total
variation per token that they would have shown nine times in ten. A positive verdict about completions requires both:
no fault found, and enough tokens to have found it.

Plain numbers only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from specbench.records.numbers import Proved
from specbench.records.prompt_sums import Sums
from specbench.records.run_record import PromptRecord

LIMIT = 4.0
QUANTILE = 1.2815515655446004  # of the normal distribution, at 0.9: how often a fault of the size of `power` is found
Score = Literal["likelihood", "draft", "echo", "order"]
SCORES: tuple[Score, ...] = get_args(Score)
ALMOST_NOTHING = 1e-9  # a variance below this is rounding: nothing was drawn
UNPROVED = cast(Proved, dict.fromkeys(Proved.__annotations__))


@dataclass(frozen=True)
class Statistic:
    """One z with its two-sided p-value."""

    z: float
    p: float

    @property
    def failed(self) -> bool:
        return abs(self.z) > LIMIT and self.p < 2 * upper_tail(LIMIT, 0.0)


@dataclass(frozen=True)
class Proof:
    """The tests over all completions of a run; each is None if nothing was left to chance.

    Attributes:
        tokens: how many tokens were read.
        power: the smallest total variation, in the mean over tokens, that |z| > 4 of `likelihood` would have shown nine
            times in ten, for a fault that tilts p to p^(1 + theta) / Z, as a wrong temperature does. To first order in
            theta the total variation at a token is |theta| E|log p + H| / 2 and z has the mean theta sqrt(sum v), so
            power = (4 + 1.28) / sqrt(sum v) * sum E|log p + H| / (2 tokens). A fault in another direction needs more
            tokens, and if it does not change the mean of log p, it shows only in the other tests.
        outside: tokens without probability under p that rounding does not explain.
    """

    tokens: int
    likelihood: Statistic | None
    draft: Statistic | None
    echo: Statistic | None
    order: Statistic | None
    power: float | None
    outside: int

    @property
    def tests(self) -> tuple[Statistic | None, ...]:
        """In the order of `SCORES`."""
        return (self.likelihood, self.draft, self.echo, self.order)

    @property
    def failed(self) -> bool:
        return self.outside > 0 or any(test.failed for test in self.tests if test is not None)

    def columns(self) -> Proved:
        """Columns of a record's summary for these tests."""
        pairs = [(None, None) if test is None else (test.z, test.p) for test in self.tests]
        (z, p), (z_draft, p_draft), (z2, p2), (z_order, p_order) = pairs
        return {
            "proof_tokens": self.tokens, "proof_z": z, "proof_p": p, "proof_power": self.power,
            "proof_z_draft": z_draft, "proof_p_draft": p_draft, "proof_z2": z2, "proof_p2": p2,
            "proof_z_order": z_order, "proof_p_order": p_order, "proof_outside": self.outside,
        }  # fmt: skip


def prove(prompts: Sequence[PromptRecord]) -> Proof | None:
    """The proof from the `proof` sums of raw prompts.

    None if a prompt has none: T = 0, a lossy rule, simulated acceptance, or an older record.
    """
    read = [prompt["proof"] for prompt in prompts if prompt.get("proof") is not None]
    if len(read) < len(prompts) or not read:
        return None
    tokens = sum(one.tokens for one in read)
    tests = {name: _test([getattr(one, name) for one in read]) for name in SCORES}
    variance = sum(one.likelihood.variance for one in read)
    power = None
    if tests["likelihood"] is not None:
        power = (LIMIT + QUANTILE) / math.sqrt(variance) * sum(one.deviation for one in read) / (2 * tokens)
    return Proof(tokens, **tests, power=power, outside=sum(one.outside for one in read))


def _test(sums: Sequence[Sums]) -> Statistic | None:
    total, variance = sum(one.sum for one in sums), sum(one.variance for one in sums)
    third = sum(one.third for one in sums)
    if variance <= ALMOST_NOTHING:
        return None
    z, skewness = total / math.sqrt(variance), third / variance**1.5
    return Statistic(z, min(1.0, 2 * min(upper_tail(z, skewness), upper_tail(-z, -skewness))))


def upper_tail(z: float, skewness: float) -> float:
    """P(X >= z) for X of the Pearson type III law with mean 0, variance 1 and this skewness; the normal law at 0.

    By the saddlepoint formula, to within 2% (Barndorff-Nielsen's r*; for a gamma law saddlepoint and cumulants have
    closed forms). With s = skewness / 2 the law ends at -1 / s.
    """
    s = skewness / 2
    if 1 + s * z <= 0:
        return 0.0 if s < 0 else 1.0
    if abs(z) < 1e-6:
        z = math.copysign(1e-6, z)
    exponent = z * z / 2 - s * z**3 / 3 if abs(s * z) < 1e-5 else (s * z - math.log1p(s * z)) / s**2
    r = math.copysign(math.sqrt(2 * exponent), z)
    return math.erfc((r + math.log(z / r) / r) / math.sqrt(2)) / 2
