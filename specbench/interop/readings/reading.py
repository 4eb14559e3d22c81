"""The common types of readings: numbers as printed, each with its definition here, and counts of passes (`Tally`).

A pass of gamma drafted tokens accepts n of them: n = gamma, or the (n + 1)-th is rejected. A pass that accepts all that
it drafted is censored: how many more the target would have accepted is not known.

Every format makes a `Reading` of a `Document`. Plain Python.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from specbench.errors import UserError
from specbench.interop.readings.document import Document

HELD = 1000  # tallies held at a time


@dataclass(frozen=True)
class Tally:
    """Passes of one request, or of several together.

    Attributes:
        passes: None if the file does not say, as `drafted`.
        rejections: passes that ended in a rejection; None if only sums are known.
        reached_at, accepted_at: how often each position was reached (drafted, and all before it accepted), and how
            often it was accepted then; empty if not known.
        undrafted: forward passes of the target for which nothing was drafted; `passes` leaves them out.
        emitted: tokens that the passes added to the completions; None: one more than were accepted in each pass.
    """

    accepted: int
    drafted: int | None = None
    passes: int | None = None
    rejections: int | None = None
    reached_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    undrafted: int = 0
    emitted: int | None = None

    @classmethod
    def of_passes(cls, passes: Iterable[tuple[int, int]], where: str) -> "Tally":
        """The tally of passes, from (drafted, accepted) of each."""
        return cls.of_histogram(Counter(passes), where)

    @classmethod
    def of_histogram(cls, found: Mapping[tuple[int, int], int], where: str) -> "Tally":
        """The tally of how many passes accepted n of gamma tokens, by (gamma, n). Raises UserError if n > gamma."""
        histogram = {pair: count for pair, count in found.items() if pair[0] > 0 and count}
        for drafted, accepted in found:
            if accepted > drafted and found[drafted, accepted]:
                raise contradiction(where, accepted, drafted)
        longest = max((drafted for drafted, _ in histogram), default=0)
        return cls(
            accepted=sum(accepted * count for (_, accepted), count in histogram.items()),
            drafted=sum(drafted * count for (drafted, _), count in histogram.items()),
            passes=sum(histogram.values()),
            rejections=sum(count for (drafted, accepted), count in histogram.items() if accepted < drafted),
            reached_at=tuple(
                sum(count for (drafted, accepted), count in histogram.items() if drafted > place <= accepted)
                for place in range(longest)
            ),
            accepted_at=tuple(
                sum(count for (_, accepted), count in histogram.items() if accepted > place) for place in range(longest)
            ),
        )

    @classmethod
    def of_sums(
        cls, accepted: int, drafted: int | None, passes: int | None, where: str, at_position: Sequence[int] = ()
    ) -> "Tally":
        """A tally from sums over passes.

        `at_position`: how many passes accepted the first, second, ... token. If every pass drafted as many tokens as
        there are positions, its last entry is the number of passes that accepted all of them. Raises UserError if the
        sums contradict each other.
        """
        if drafted is not None and accepted > drafted:
            raise contradiction(where, accepted, drafted)
        full = passes is not None and bool(at_position) and drafted == passes * len(at_position)
        if passes is not None and any(a > b for a, b in zip(at_position, (passes, *at_position), strict=False)):
            raise UserError(
                f"{where}: of {passes} passes {', '.join(map(str, at_position))} accepted the first, second, ... "
                "token; these counts contradict each other"
            )
        if not full or passes is None:
            return cls(accepted, drafted, passes)
        return cls(accepted, drafted, passes, passes - at_position[-1], (passes, *at_position[:-1]), tuple(at_position))

    @property
    def drafted_per_pass(self) -> float | None:
        return self.drafted / self.passes if self.passes and self.drafted is not None else None

    @property
    def rate(self) -> float | None:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def length(self) -> float | None:
        """Tokens per pass of the target, with the token that it adds, over passes with and without a draft."""
        if not self.passes:
            return None
        emitted = self.accepted + self.passes if self.emitted is None else self.emitted
        return (emitted + self.undrafted) / (self.passes + self.undrafted)


def contradiction(where: str, accepted: int, drafted: int) -> UserError:
    """The error for more accepted than drafted tokens."""
    return UserError(f"{where}: {accepted} of {drafted} drafted tokens accepted; these counts contradict each other")


def together(tallies: Sequence[Tally]) -> Tally:
    """All passes of `tallies`; what one of them does not know is not known of all."""
    longest = max((len(one.reached_at) for one in tallies), default=0)
    exact = all(one.rejections is not None for one in tallies)

    def at(columns: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        padded = [column + (0,) * (longest - len(column)) for column in columns]
        return tuple(map(sum, zip(*padded, strict=True))) if exact else ()

    return Tally(
        accepted=sum(one.accepted for one in tallies),
        drafted=_sum(one.drafted for one in tallies),
        passes=_sum(one.passes for one in tallies),
        rejections=_sum(one.rejections for one in tallies),
        reached_at=at(one.reached_at for one in tallies),
        accepted_at=at(one.accepted_at for one in tallies),
        undrafted=sum(one.undrafted for one in tallies),
        emitted=_emitted(tallies),
    )


def gathered(tallies: Iterable[Tally]) -> Tally:
    """All passes of any number of tallies, of which only a few are held at a time."""
    return together(list(_folded(tallies)))


def _folded(tallies: Iterable[Tally]) -> Iterator[Tally]:
    remaining = iter(tallies)
    while few := list(islice(remaining, HELD)):
        yield together(few)


def _emitted(tallies: Sequence[Tally]) -> int | None:
    """Emitted tokens of all; None if no tally has its own count, or if one has neither it nor its passes."""
    if all(one.emitted is None for one in tallies):
        return None
    return _sum(
        one.emitted if one.emitted is not None or one.passes is None else one.accepted + one.passes for one in tallies
    )


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


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
BONUS: Mapping[str, Bonus] = {LENGTH: "with", RATE: "without", ACCEPTED: "without"}
# Notes of several engines.
LAST_PASSES = "the last pass of a completion counts as a rejection: α of short completions is too low"
DIFFERENT_LENGTHS = "passes drafted different numbers of tokens, or positions are missing: α is by moments"


@dataclass(frozen=True)
class Printed:
    """A number that an engine prints.

    Attributes:
        name: the engine's name for it.
        meaning: ours.
        bonus: whether the token that the target adds to each pass is counted, by the meaning; '' if the question
            does not arise.
    """

    name: str
    value: float
    meaning: str
    pooling: Pooling = "pooled"
    ends: Ends = "unknown"
    bonus: Bonus = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bonus", BONUS.get(self.meaning, ""))


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
    if there are no counts to estimate anything from, and `notes` say why. `kinds`: a file with several kinds of draft
    has a reading for each, by its name, and is shown as these.
    """

    printed: Sequence[Printed]
    requests: Sequence[Tally] = ()
    by_request: bool = False
    ends: Ends = "unknown"
    notes: Sequence[str] = ()
    kinds: Mapping[str, "Reading"] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        fits: whether a document is of this kind; quick, raises nothing.
        read: the reading of a document, and of counters also an earlier document or None, which is subtracted; raises
            UserError for a file that is cut off, damaged, or without speculative decoding.
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
    read: Callable[..., Reading] = field(repr=False)
    counters: bool = False


def mean_of_requests(name: str, values: Sequence[float], meaning: str, ends: Ends = "unknown") -> Printed:
    """The mean of a number that a tool prints for each request."""
    pooling: Pooling = "mean of requests" if len(values) > 1 else "one request"
    return Printed(name, sum(values) / len(values), meaning, pooling, ends)


def totals(
    names: Mapping[str, str], tally: Tally, pooling: Pooling = "pooled", ends: Ends = "unknown"
) -> list[Printed]:
    """The three counts under the engine's `names` for them, of those that it has."""
    values = {PASSES: tally.passes, DRAFTED: tally.drafted, ACCEPTED: tally.accepted}
    return [
        Printed(name, value, meaning, pooling, ends)
        for meaning, name in names.items()
        if (value := values[meaning]) is not None
    ]


def marginals(name: str, accepted: Sequence[int], passes: int | None) -> list[Printed]:
    """The acceptance at each position; `name` has {} for the position from 0. All engines count past the ends."""
    return [
        Printed(name.format(place), count / passes, MARGINAL.format(place + 1), ends="in")
        for place, count in enumerate(accepted)
        if passes
    ]
