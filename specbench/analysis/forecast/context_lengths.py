"""The cost of steps and passes at unmeasured contexts, the speedup there, and the context from which a draft pays.

A step reads the weights once and every token of the cache once, so its time is a fixed part and one for each token:
T(S) = a + b S. So are drafting a token and verifying a proposal, each with parts of its own (MagicDec, Chen et al.
2024, section 3): if the cache outweighs the weights v tends to 1, and c of a draft that reads a window to 0. The two
parts come from the two nearest measured contexts, for b grows where the cache outgrows a cache of the processor. Tokens
per pass have no such law: between two contexts they are interpolated on a log scale, beyond them the nearest context's
are taken. A forecast is tested by leaving a measured context out and comparing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

STEPS = 48  # contexts at which a crossing is looked for, evenly spaced on a log scale
BEYOND = 2.0  # times the longest measured context, up to which it is


@dataclass(frozen=True)
class AtContext:
    """One draft and gamma at a context of so many tokens, prompt and half of the completion: seconds."""

    tokens: float
    gamma: int
    step_s: float  # of the target alone
    draft_s: float  # a drafted token
    verify_s: float  # a pass over gamma + 1 positions
    accept_s: float
    emitted: float  # tokens per pass
    measured_speedup: float | None = None  # of a run that decoded with the draft and without

    @property
    def c(self) -> float:
        return self.draft_s / self.step_s

    @property
    def verify_cost(self) -> float:
        return self.verify_s / self.step_s

    @property
    def pass_s(self) -> float:
        """Seconds of a full pass."""
        return self.gamma * self.draft_s + self.verify_s + self.accept_s

    @property
    def speedup(self) -> float:
        """Tokens a pass over its costs, as in Theorem 3.8."""
        return self.emitted * self.step_s / self.pass_s


class HeldOut(NamedTuple):
    """A context that was measured, and what the others say of it."""

    measured: AtContext
    forecast: AtContext

    @property
    def errors(self) -> dict[str, float]:
        """Forecast over measured, less 1.

        For a step, a pass (gamma drafted tokens, verifying, accepting), and the speedup if it was measured.
        """
        found = {
            "a step": self.forecast.step_s / self.measured.step_s - 1,
            "a pass": self.forecast.pass_s / self.measured.pass_s - 1,
        }
        if (speedup := self.measured.measured_speedup) is not None:
            found["the speedup"] = self.forecast.speedup / speedup - 1
        return found


def forecast(measured: Sequence[AtContext], tokens: float) -> AtContext:
    """One draft and gamma at a context of so many `tokens`, from two or more contexts."""
    known = sorted(measured, key=lambda one: one.tokens)
    above = next((place for place, one in enumerate(known) if one.tokens >= tokens), len(known) - 1)
    low, high = known[max(0, above - 1)], known[max(1, above)]
    share = (tokens - low.tokens) / (high.tokens - low.tokens)

    def line(name: str) -> float:
        begin, end = float(getattr(low, name)), float(getattr(high, name))
        return max(begin + share * (end - begin), min(begin, end) / 2)  # a time below 0 is noise

    slow = min(1.0, max(0.0, math.log(tokens / low.tokens) / math.log(high.tokens / low.tokens)))
    emitted = low.emitted + slow * (high.emitted - low.emitted)
    return AtContext(
        tokens, low.gamma, line("step_s"), line("draft_s"), line("verify_s"), line("accept_s"), emitted
    )  # fmt: skip


def held_out(measured: Sequence[AtContext]) -> list[HeldOut]:
    """Each context but the shortest, forecast from the others; the longest so from shorter ones. Requires three."""
    known = sorted(measured, key=lambda one: one.tokens)
    places = range(1, len(known) if len(known) > 2 else 0)
    return [HeldOut(known[at], forecast([*known[:at], *known[at + 1 :]], known[at].tokens)) for at in places]


def by_gamma(measured: Sequence[AtContext]) -> list[list[AtContext]]:
    """Each gamma that was measured at two contexts or more."""
    gammas = sorted({one.gamma for one in measured})
    groups = [[one for one in measured if one.gamma == gamma] for gamma in gammas]
    return [group for group in groups if len({one.tokens for one in group}) > 1]


def best_at(measured: Sequence[AtContext], tokens: float) -> AtContext | None:
    """The gamma with the highest forecast speedup at a context; None if none was measured at two contexts."""
    return max((forecast(group, tokens) for group in by_gamma(measured)), key=lambda one: one.speedup, default=None)


def crossings(measured: Sequence[AtContext]) -> list[tuple[float, bool]]:
    """The contexts at which the forecast speedup at the best gamma crosses 1, and whether it is above 1 from there."""
    if not by_gamma(measured):
        return []
    first, last = min(one.tokens for one in measured), BEYOND * max(one.tokens for one in measured)
    places = [first * (last / first) ** (step / STEPS) for step in range(STEPS + 1)]
    pays = [(one := best_at(measured, place)) is not None and one.speedup > 1 for place in places]
    return [
        (math.sqrt(before * place), now)
        for before, place, was, now in zip(places, places[1:], pays, pays[1:], strict=False)
        if was != now
    ]


def beyond(measured: Sequence[AtContext]) -> AtContext | None:
    """The forecast at `BEYOND` times the longest context, with the best gamma."""
    return best_at(measured, BEYOND * max(one.tokens for one in measured)) if measured else None


def at_length(found: AtContext) -> str:
    """A sentence on a context that was not measured."""
    return (
        f"forecast at {found.tokens:,.0f} tokens, which were not measured: c = {found.c:.3f}, "
        f"v = {found.verify_cost:.2f} and a speedup of {found.speedup:.2f} with γ={found.gamma}"
    )


def said(name: str, measured: Sequence[AtContext], falls: bool = False) -> list[str]:
    """Sentences on one draft over its contexts: where it pays, a forecast, and how well others were forecast.

    Where it pays is not known of a draft whose acceptance `falls` with the position, since tokens per pass are of one
    alpha.
    """
    if (further := beyond(measured)) is None:
        return []
    lines = []
    last = max(one.tokens for one in measured)
    if falls:
        lines.append(f"{name}: acceptance falls with the position, so that α does not say where it pays")
    for tokens, pays in crossings(measured) if not falls else ():
        unseen = ", beyond what was measured" if tokens > last else ""
        lines.append(f"{name}: {'pays' if pays else 'no longer pays'} from a context of about {tokens:,.0f} on{unseen}")
    if not lines and (best := best_at(measured, last)) is not None:
        lines.append(f"{name}: {'pays' if best.speedup > 1 else 'does not pay'} at every context up to {last:,.0f}")
    if not falls:
        lines.append(f"{name}: {at_length(further)}")
    inner, longest = list[HeldOut](), list[HeldOut]()
    for group in by_gamma(measured):
        for one in held_out(group):
            (longest if one.measured.tokens == max(each.tokens for each in group) else inner).append(one)
    for those, others in ((inner, "the others"), (longest, "shorter ones")):
        if those:
            places = ", ".join(f"{tokens:,.0f}" for tokens in sorted({one.measured.tokens for one in those}))
            lines.append(f"{name}: left out and forecast from {others}, at {places} tokens: {_errors(those)}")
    return lines


def _errors(tested: Sequence[HeldOut]) -> str:
    """How far the forecasts are from what was measured, at most and in the mean."""
    parts = dict.fromkeys(part for one in tested for part in one.errors)
    shares = {part: [100 * abs(one.errors[part]) for one in tested if part in one.errors] for part in parts}
    return ", ".join(f"{part} within {max(each):.1f}% (mean {fmean(each):.1f}%)" for part, each in shares.items())
