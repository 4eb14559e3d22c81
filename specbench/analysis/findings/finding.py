"""Findings, the observations that they come from, and the tests by which a difference counts as shown.

A finding is evidence that a draft is wrong, in one line: what was counted, what it probably is, what to check next. It
is shown if chance would show it in fewer than one of `CHANCE` runs with a sound draft, and if it is large enough to
matter. Tokens of one prompt are not independent: with `FEW` prompts or more the test is over prompts
(`stats.over_rows`), with fewer over tokens, each of which counts as a quarter.

Plain arithmetic over completions; no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, lgamma, log, log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.findings.cheap import Cheap, cheap
from specbench.stats import over_rows, ratio

CHANCE = 1000  # a finding is false in one of so many runs of a sound draft
LEVEL = 1 - 2 / CHANCE  # of a two-sided interval, one bound of which is looked at
NORMAL = 3.09  # the quantile of the normal distribution at 1 - 1 / CHANCE
FEW = 6  # prompts, below which tokens are counted
PER_TOKEN = 4  # neighbouring tokens that count as one then
FEWEST = 40  # tokens: less shows nothing
MOST_SHIFT = 2  # tokens
NEGLIGIBLE = 1e-9  # part of a sum


@dataclass(frozen=True)
class Text:
    """One completion, and what is known of the draft along it.

    Attributes:
        tokens: of the completion.
        named: the token that the draft proposed, or gives most probability, at each of them; None if it proposed
            nothing, or nothing is known.
        beta: the acceptance probability at each token of the target's own completion; empty if it is not known.
        scored: the tokens that `beta` is along.
        start: tokens of context before the completion.
        turn: of a conversation, from 1.
        sums: by name, what teacher forcing summed over the completion (`analysis.acceptance.signs`).
    """

    tokens: Sequence[int]
    named: Sequence[int | None]
    beta: Sequence[float] = ()
    scored: Sequence[int] = ()
    start: int = 0
    turn: int = 1
    sums: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Observed:
    """A draft along completions of its target.

    Attributes:
        groups: a number for each text, the same for equal prompts.
        pieces: the string of a token, if it is known.
        positions: of each position of a proposal, how often it was reached and how often accepted.
        falls: whether the draft is accepted less often the further ahead it drafts, by its kind.
        inside: whether it reads the target's states.
        reads_last: whether it reads the last token before it drafts.
        starts: of passes by prompt: how many, how often teacher forcing accepts the first token, how often they did.
        accepted, drafted: tokens of all passes; 0 without passes.
    """

    texts: Sequence[Text]
    groups: Sequence[int]
    temperature: float = 0.0
    pieces: Mapping[str, str] = field(default_factory=dict)
    positions: Sequence[tuple[int, int]] = ()
    falls: bool = False
    inside: bool = False
    reads_last: bool = True
    starts: Sequence[tuple[int, float, int]] = ()
    accepted: int = 0
    drafted: int = 0

    @cached_property
    def cheap(self) -> Cheap:
        """The tokens that drafts without cost propose along the target's own completions."""
        return cheap([text.scored for text in self.texts], self.groups)

    @cached_property
    def cheap_named(self) -> Cheap:
        """The tokens that drafts without cost propose along the completions for which the draft's tokens are known."""
        return cheap([text.tokens for text in self.texts], self.groups)

    @property
    def betas(self) -> list[Sequence[float]]:
        """The acceptance probability at each token, by text."""
        return [text.beta for text in self.texts]

    def hits(self, shift: int = 0) -> list[list[bool]]:
        """By text, for each token that the draft named: whether it stands `shift` places later.

        Places near the ends do not count, so that shares of different shifts are of the same places.
        """
        return [
            [
                named == text.tokens[place + shift]
                for place, named in enumerate(text.named)
                if named is not None and MOST_SHIFT <= place < len(text.tokens) - MOST_SHIFT
            ]
            for text in self.texts
        ]

    def piece(self, token: int) -> str:
        """A token for a reader."""
        text = self.pieces.get(str(token))
        return f"token {token}" if text is None else repr(text)


def mean(rows: Sequence[Sequence[float]]) -> float:
    """The mean of numbers given by prompt; 0 without any."""
    count = sum(map(len, rows))
    return sum(map(sum, rows)) / count if count else 0.0


def is_above(rows: Sequence[Sequence[float]], groups: Sequence[int], least: float = 0.0) -> bool:
    """Whether the mean of numbers given by prompt is above `least`, beyond chance."""
    count = sum(map(len, rows))
    if count < FEWEST:
        return False
    if len({group for group, row in zip(groups, rows, strict=True) if len(row)}) >= FEW:
        columns = [(sum(row), len(row)) for row in rows]
        low = over_rows(columns, ratio, scale="difference", level=LEVEL, groups=list(groups)).low
        return low is not None and low > least
    values = np.concatenate([np.asarray(row, float) for row in rows])
    spread = float(values.std()) or 1 / count
    return float(values.mean()) - NORMAL * spread * sqrt(PER_TOKEN / count) > least


def falls(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], groups: Sequence[int]) -> bool:
    """Whether the mean of numbers given by prompt is lower in `after` than in `before`, beyond chance."""
    counts = [sum(map(len, rows)) for rows in (before, after)]
    if min(counts) < FEWEST:
        return False
    columns = [(sum(a), len(a), sum(b), len(b)) for a, b in zip(before, after, strict=True)]
    prompts = [len({group for group, row in zip(groups, rows, strict=True) if row}) for rows in (before, after)]
    if min(prompts) >= FEW:
        low = over_rows(columns, _drop, scale="difference", level=LEVEL, groups=list(groups)).low
        return low is not None and low > 0
    values = [np.concatenate([np.asarray(row, float) for row in rows]) for rows in (before, after)]
    spread = sqrt(sum(PER_TOKEN * max(float(one.var()), 1 / len(one)) / len(one) for one in values))
    return float(values[0].mean() - values[1].mean()) > NORMAL * spread


def binomial_tail(most: int, trials: int, chance: float) -> float:
    """The probability of at most `most` successes in `trials`, if these are fewer than expected; otherwise 1."""
    if most >= chance * trials:
        return 1.0
    found = 0.0
    for count in range(most, -1, -1):  # the terms become smaller
        ways = lgamma(trials + 1) - lgamma(count + 1) - lgamma(trials - count + 1)
        term = exp(ways + count * log(chance) + (trials - count) * log1p(-chance))
        found += term
        if term <= NEGLIGIBLE * found:
            break
    return found


def _drop(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    return ratio(totals[..., :2]) - ratio(totals[..., 2:])
