"""What steps and passes cost at contexts that were not measured, and where a draft begins or ceases to pay.

A step reads the weights once and every token of the cache once, so its time is a fixed part and one for each token:
T(S) = a + b S. So are drafting a token and verifying a proposal, each with parts of its own (MagicDec, Chen et al.
2024, section 3): where the cache outweighs the weights v tends to 1, and c of a draft that reads a window to 0. The two
parts are those of the two nearest contexts that were measured, for b grows where the cache outgrows a cache of the
processor. A forecast is tested by leaving a measured context out and comparing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from specbench import theory

STEPS = 48  # contexts at which a crossing is looked for, evenly spaced on a log scale
BEYOND = 2.0  # times the longest measured context, up to which it is


@dataclass(frozen=True)
class AtContext:
    """One draft and gamma at a context of so many tokens, prompt and half of the completion: seconds, and alpha."""

    tokens: float
    gamma: int
    step_s: float  # of the target alone
    draft_s: float  # a drafted token
    verify_s: float  # a pass over gamma + 1 positions
    accept_s: float
    alpha: float

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
        """Theorem 3.8 with the measured costs."""
        return theory.expected_tokens(self.alpha, self.gamma) * self.step_s / self.pass_s


class HeldOut(NamedTuple):
    """A context that was measured, and what the others say of it."""

    measured: AtContext
    forecast: AtContext

    @property
    def errors(self) -> dict[str, float]:
        """Forecast over measured, less 1: of a step, and of a pass (gamma drafted tokens, verifying, accepting)."""
        return {
            "step": self.forecast.step_s / self.measured.step_s - 1,
            "pass": self.forecast.pass_s / self.measured.pass_s - 1,
        }


def forecast(measured: Sequence[AtContext], tokens: float) -> AtContext:
    """One draft and gamma at a context of so many `tokens`, from two or more contexts."""
    known = sorted(measured, key=lambda one: one.tokens)
    above = next((place for place, one in enumerate(known) if one.tokens >= tokens), len(known) - 1)
    low, high = known[max(0, above - 1)], known[max(1, above)]
    share = (tokens - low.tokens) / (high.tokens - low.tokens)

    def line(name: str) -> float:
        begin, end = float(getattr(low, name)), float(getattr(high, name))
        return max(begin + share * (end - begin), min(begin, end) / 2)  # a time below 0 is noise

    # Alpha has no cost model: between two contexts it is interpolated on a log scale, beyond them it is the nearest.
    slow = min(1.0, max(0.0, math.log(tokens / low.tokens) / math.log(high.tokens / low.tokens)))
    alpha = low.alpha + slow * (high.alpha - low.alpha)
    return AtContext(
        tokens, low.gamma, line("step_s"), line("draft_s"), line("verify_s"), line("accept_s"), alpha
    )  # fmt: skip


def held_out(measured: Sequence[AtContext]) -> list[HeldOut]:
    """Each context between others, forecast from them."""
    known = sorted(measured, key=lambda one: one.tokens)
    return [
        HeldOut(one, forecast([*known[:place], *known[place + 1 :]], one.tokens))
        for place, one in enumerate(known)
        if 0 < place < len(known) - 1
    ]


def by_gamma(measured: Sequence[AtContext]) -> list[list[AtContext]]:
    """Each gamma that was measured at two contexts or more."""
    gammas = sorted({one.gamma for one in measured})
    groups = [[one for one in measured if one.gamma == gamma] for gamma in gammas]
    return [group for group in groups if len({one.tokens for one in group}) > 1]


def best_at(measured: Sequence[AtContext], tokens: float) -> AtContext | None:
    """The gamma with the highest forecast speedup at a context; None where none was measured at two contexts."""
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


def said(name: str, measured: Sequence[AtContext], falls: bool = False) -> list[str]:
    """Sentences on one draft over its contexts: where it pays, and how well its costs are forecast.

    Where it pays is not known of a draft whose acceptance `falls` with the position, since one alpha does not describe
    it.
    """
    if not by_gamma(measured):
        return []
    lines = []
    last = max(one.tokens for one in measured)
    if falls:
        lines.append(f"{name}: acceptance falls with the position, so that α does not say where it pays")
    for tokens, pays in crossings(measured) if not falls else ():
        beyond = ", beyond what was measured" if tokens > last else ""
        lines.append(f"{name}: {'pays' if pays else 'no longer pays'} from a context of about {tokens:,.0f} on{beyond}")
    if not lines and (best := best_at(measured, last)) is not None:
        lines.append(f"{name}: {'pays' if best.speedup > 1 else 'does not pay'} at every context up to {last:,.0f}")
    tested = [(one, errors) for group in by_gamma(measured) for one in held_out(group) for errors in [one.errors]]
    if tested:
        worst = {part: max((abs(errors[part]) for _, errors in tested)) for part in ("step", "pass")}
        mean = {part: fmean(abs(errors[part]) for _, errors in tested) for part in worst}
        places = ", ".join(f"{tokens:,.0f}" for tokens in sorted({one.measured.tokens for one, _ in tested}))
        lines.append(
            f"{name}: each context left out in turn ({places}) and forecast from the others: a step within "
            f"{100 * worst['step']:.1f}% (mean {100 * mean['step']:.1f}%), a pass within {100 * worst['pass']:.1f}% "
            f"(mean {100 * mean['pass']:.1f}%)"
        )
    return lines
