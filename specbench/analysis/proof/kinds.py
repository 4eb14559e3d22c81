"""The kind of difference between two servers: one with a draft, and one with the same target without a draft.

Three kinds, each with its evidence:

`other rounding`
    At T = 0: few tokens are not the target's best, all within `CLOSE` logits of it: converted weights, another dtype,
    an 8-bit cache. Completions of both servers may then differ only if one of them took the other side of a near
    tie. At T > 0: tokens stand outside top-k or top-p that logits moved by `CLOSE` let in, and all tests pass.
`a fault of speculation`
    The completions without a draft pass, in enough tokens, those with a draft do not, and both differ from each other.
`another distribution`
    Neither passes: another temperature, top-p, a penalty, other weights.

Plain numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from specbench.analysis.proof.certificate import MISSED, Certificate

if TYPE_CHECKING:
    from specbench.analysis.proof.departures import Departure

Kind = Literal["other rounding", "another distribution", "a fault of speculation"]
ROUNDING: Kind = "other rounding"
DISTRIBUTION: Kind = "another distribution"
SPECULATION: Kind = "a fault of speculation"
CLOSE = 0.05  # logits below the best: as far as conversions of weights, other kernels and 8-bit caches move a token
FEW = 0.02  # of the tokens: more is no rounding
STATISTICS = ("proof_z", "proof_z2", "proof_z_order")  # standard normal if the tokens were drawn from p
CHANCE, FAR = 0.01, 2.58  # the chance of a difference between equal sides; the two-sided z that goes with it
SAME_PROMPTS = 0.9  # of the tokens with a draft: the least without one if both answered the same prompts
WEAKER = 1.5  # times the power with a draft: limit on the power without one, to say that plain completions pass


@dataclass(frozen=True)
class DraftTokens:
    """The draft tokens that a server verified for the completions in question."""

    drafted: int
    accepted: int

    @property
    def rejected(self) -> int:
        return self.drafted - self.accepted

    def too_few(self, within: float) -> list[str]:
        """The names of what is too rare, accepted or rejected, to show a fault in a share `within` of it."""
        kinds = (("accepted", self.accepted), ("rejected", self.rejected))
        return [name for name, number in kinds if number < enough(within)]

    def __str__(self) -> str:
        return f"{self.drafted:,} tokens drafted, {self.accepted:,} accepted, {self.rejected:,} rejected"


@dataclass(frozen=True)
class Side:
    """The completions of one server: their certificate, and at T = 0 their departures."""

    certificate: Certificate
    departures: Sequence[Departure] = ()
    within_close: bool = False  # at T > 0: tokens outside the support are all that fails, and lie `CLOSE` to it
    lags: bool = False  # at T > 0: its tokens are likelier with penalties that lag by a block

    @property
    def passes(self) -> bool:
        return self.certificate.verdict == "the target's"

    @property
    def fails(self) -> bool:
        return self.certificate.verdict == "not the target's"

    @property
    def farthest(self) -> float:
        """Logits of the best token above the farthest that was written; 0 without departures."""
        return max((one.margin for one in self.departures), default=0.0)

    @property
    def is_rounding(self) -> bool:
        """Whether it fails by rounding that is not this machine's."""
        if not self.fails:
            return False
        if self.certificate.tests is not None:
            return self.within_close
        return self.farthest <= CLOSE and len(self.departures) <= max(1, FEW * self.certificate.tokens)


@dataclass(frozen=True)
class Agreement:
    """Completions of both servers for equal prompts, at T = 0.

    Attributes:
        pairs, equal: how many there are, and how many are equal.
        farthest: of the first places where two differ, the largest distance in logits between their tokens.
    """

    pairs: int
    equal: int
    farthest: float = 0.0

    def __str__(self) -> str:
        if not self.pairs:
            return "no prompt was completed with and without a draft"
        if self.equal == self.pairs:
            return f"all {self.pairs} completions equal those without a draft"
        return (
            f"{self.equal} of {self.pairs} completions equal those without a draft, the others leave them at tokens up "
            f"to {self.farthest:.2g} logits apart"
        )


@dataclass(frozen=True)
class Verdict:
    """A verdict on the completions of a server with a draft.

    Attributes:
        kind: of the difference; None if there is none, or it cannot be told.
        drafted: the certificate of the completions with a draft; `plain`: of those without one, if given.
        evidence: what it rests on, one sentence each.
        agreement: of both servers, at T = 0.
        counts: its draft tokens, if the server counts them.
        covers_drafts: whether enough of them were accepted and rejected; None if they are not counted.
    """

    kind: Kind | None
    drafted: Certificate
    plain: Certificate | None = None
    evidence: Sequence[str] = ()
    agreement: Agreement | None = None
    counts: DraftTokens | None = None
    covers_drafts: bool | None = None

    @property
    def name(self) -> str:
        """The kind, or the verdict of the certificate."""
        return self.kind or self.drafted.verdict

    @property
    def is_verified(self) -> bool:
        """Whether the completions are shown to be the target's, or so but for rounding that is not speculation's."""
        shown = self.kind == ROUNDING or (self.kind is None and self.drafted.verdict == "the target's")
        return shown and self.covers_drafts is not False

    @property
    def is_faulty(self) -> bool:
        """Whether the completions are shown to be others than the target's by more than rounding."""
        return self.kind == SPECULATION or (self.drafted.verdict == "not the target's" and self.kind != ROUNDING)

    @property
    def line(self) -> str:
        """The verdict in one line, with its evidence."""
        name = self.name if self.covers_drafts is not False or self.is_faulty else f"{self.name}, plain passes only"
        return f"{name}: {'; '.join(self.evidence)}"


def enough(within: float) -> int:
    """How many tokens show a fault in a share `within` of them with 95%."""
    return math.ceil(math.log(MISSED) / math.log1p(-within))


def verdict(
    drafted: Side, plain: Side | None, within: float, agreement: Agreement | None = None,
    counts: DraftTokens | None = None, explained: str = "", ends: str = "",
) -> Verdict:  # fmt: skip
    """The verdict on completions with a draft.

    Args:
        drafted: the completions with a draft.
        plain: the completions of the same target without a draft.
        within: the size of the fault that a positive verdict excludes.
        agreement: at T = 0, of both.
        counts: of draft tokens, for `drafted`.
        explained: settings under which the completions with a draft are likelier, in words, or ''.
        ends: faults of the ends of only the completions with a draft, in words, or ''.
    """
    evidence = [drafted.certificate.reason]
    kind = _kind(drafted, plain, agreement, evidence)
    if ends:
        evidence.insert(0 if kind is None else len(evidence), ends)
        kind = kind or SPECULATION
    if explained:
        evidence.append(explained)
    found = Verdict(kind, drafted.certificate, None if plain is None else plain.certificate, (), agreement, counts)
    if counts is None:
        uncounted = [] if plain is None else ["draft tokens are not counted: it may have drafted none"]
        return replace(found, evidence=[*evidence, *uncounted])
    few = counts.too_few(within)
    evidence.append(str(counts))
    if few and not found.is_faulty:
        evidence.append(f"fewer than {enough(within)} {' and '.join(few)}: the verdict covers plain passes only")
    return replace(found, evidence=evidence, covers_drafts=not few)


def _kind(drafted: Side, plain: Side | None, agreement: Agreement | None, evidence: list[str]) -> Kind | None:
    """The kind of the difference; what it rests on is added to `evidence`."""
    if agreement is not None:
        evidence.append(str(agreement))
    if not drafted.fails:
        return None
    if drafted.is_rounding:
        if drafted.departures:
            evidence[0] = _near(drafted)
        if plain is not None and plain.passes and not plain.departures:
            evidence.append("the server without a draft has none: its passes over several tokens round otherwise")
        return ROUNDING
    if plain is None:
        evidence.append(
            "without completions of the same target without a draft, its fault is not told from the draft's"
        )
        return None
    evidence.append(f"without a draft: {plain.certificate.verdict}, {plain.certificate.reason}")
    if plain.is_rounding:
        if plain.departures:
            evidence.append(f"without a draft {_near(plain)}")
        return SPECULATION
    if plain.fails:
        return DISTRIBUTION
    if plain.passes or _as_powerful(plain.certificate, drafted.certificate):
        if _differ(drafted, plain):
            return SPECULATION
        evidence.append("both sides do not differ from each other enough to say that speculation is at fault")
        return None
    evidence.append("the completions without a draft are too few to tell whose fault it is")
    return None


def _near(side: Side) -> str:
    count = len(side.departures)
    tokens = "1 token is" if count == 1 else f"{count} tokens are"
    return (
        f"{tokens} not the best of {side.certificate.tokens:,}, at most {side.farthest:.2g} logits below it, as "
        "converted weights, another dtype or an 8-bit cache do"
    )


def _differ(drafted: Side, plain: Side) -> bool:
    """Whether the fault with a draft is more than the completions without one show, but for a chance below `CHANCE`.

    At T = 0 a server repeats itself: of the same prompts each token before the fault is the same on both sides. At
    T > 0 each statistic is compared per token, and the tokens outside the target's support as shares; foreign tokens
    differ if those without a draft speak against the rate of those with one.
    """
    ours, theirs = drafted.certificate, plain.certificate
    if ours.tests is None or theirs.tests is None:
        if theirs.tokens >= SAME_PROMPTS * ours.tokens:
            return True
        return _share_is_above(len(drafted.departures), ours.tokens, len(plain.departures), theirs.tokens)
    if drafted.lags and not plain.lags:
        return True
    if _share_is_above(
        ours.tests.get("proof_outside") or 0, ours.tokens, theirs.tests.get("proof_outside") or 0, theirs.tokens
    ):
        return True
    if ours.foreign and theirs.foreign and ours.foreign.failed and theirs.foreign.is_without(ours.foreign):
        return True
    spread = math.sqrt(1 / ours.tokens + 1 / theirs.tokens)
    pairs = [(ours.tests.get(name), theirs.tests.get(name)) for name in STATISTICS]
    return any(
        abs(one / math.sqrt(ours.tokens) - other / math.sqrt(theirs.tokens)) > FAR * spread
        for one, other in pairs
        if isinstance(one, float) and isinstance(other, float)
    )


def _share_is_above(faults: int, tokens: int, other_faults: int, other_tokens: int) -> bool:
    """Whether one share of faults is above another, by the binomial test of which side each fault fell on."""
    if not faults or not other_tokens:
        return False
    total, share = faults + other_faults, tokens / (tokens + other_tokens)
    ways = math.lgamma(total + 1)
    chances = (
        math.exp(
            ways - math.lgamma(k + 1) - math.lgamma(total - k + 1)
            + k * math.log(share) + (total - k) * math.log1p(-share)
        )
        for k in range(faults, total + 1)
    )  # fmt: skip
    return sum(chances) < CHANCE


def _as_powerful(plain: Certificate, drafted: Certificate) -> bool:
    """Whether a fault that shows with a draft would have shown without one."""
    if plain.verdict != "cannot tell" or plain.needed is None or plain.power is None or drafted.power is None:
        return False
    return plain.power <= WEAKER * drafted.power
