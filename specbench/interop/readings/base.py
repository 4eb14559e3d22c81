"""The common types of readings: numbers as printed, each with its definition here, and counts.

Every format is a file of this room that makes a `Reading` of a `Document`. Plain Python.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specbench.interop.readings.document import Document
from specbench.interop.readings.tally import Tally

# Over what a mean is taken. 'windows' are the intervals between two lines of a log.
Pooling = Literal["pooled", "one request", "mean of requests", "mean of windows"]
# How draft tokens after the end of a completion count. in: as if it continued. out: they are cut, so
# that the pass looks like one that ended in a rejection. censored: it counts up to the end, without a rejection.
Ends = Literal["in", "out", "censored", "unknown"]
Bonus = Literal["with", "without", ""]

PASSES, DRAFTED, ACCEPTED = "passes", "drafted tokens", "accepted tokens"
RATE = "accepted / drafted"
LENGTH = "tokens per pass"
MARGINAL = "marginal acceptance at position {}"
CONDITIONAL = "conditional acceptance at position {}"
WRITTEN = "tokens written"


@dataclass(frozen=True)
class Printed:
    """A number that an engine prints.

    Attributes:
        name: the engine's name for it.
        meaning: ours.
        bonus: whether the token that the target adds to each pass is counted; '' where the question does not arise.
    """

    name: str
    value: float
    meaning: str
    pooling: Pooling = "pooled"
    ends: Ends = "unknown"
    bonus: Bonus = ""


@dataclass
class Mean:
    """A mean of values that are not held."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count


@dataclass(frozen=True)
class Reading:
    """One file.

    `requests` holds a tally for each request if the file tells them apart, otherwise one for all of them; it is empty
    where there are no counts to estimate anything from, and `notes` say why.
    """

    printed: Sequence[Printed]
    requests: Sequence[Tally] = ()
    by_request: bool = False
    ends: Ends = "unknown"
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        fits: whether a document is of this kind; quick, raises nothing.
        read: the reading; raises UserError for a file that is cut off, damaged, or without speculative decoding.
        page: where the engine describes it.
        version: the version that it was checked against.
        counters: whether it holds counters since the server's start, so that two readings can be subtracted.
    """

    name: str
    engine: str
    about: str
    page: str
    version: str
    fits: Callable[[Document], bool]
    read: Callable[[Document, "Known"], Reading] = field(repr=False)
    counters: bool = False


@dataclass(frozen=True)
class Known:
    """Facts that the user gives if the file lacks them.

    Attributes:
        gamma: tokens drafted in a pass.
        since: an earlier reading of the same counters, which is subtracted.
    """

    gamma: int | None = None
    since: Document | None = None


def of_requests(requests: int) -> Pooling:
    """The pooling, in words, of a number that a tool prints for each of `requests`."""
    return "mean of requests" if requests > 1 else "one request"


def bonus_of(meaning: str) -> Bonus:
    """Whether a quantity includes the target's own token: tokens per pass do, accepted tokens do not."""
    if meaning == LENGTH:
        return "with"
    return "without" if meaning in (RATE, ACCEPTED) else ""


def totals(
    names: Mapping[str, str], tally: Tally, pooling: Pooling = "pooled", ends: Ends = "unknown"
) -> list[Printed]:
    """The three counts under the engine's `names` for them, of those that it has."""
    values = {PASSES: tally.passes, DRAFTED: tally.drafted, ACCEPTED: tally.accepted}
    return [
        Printed(name, value, meaning, pooling, ends, bonus_of(meaning))
        for meaning, name in names.items()
        if (value := values[meaning]) is not None
    ]
