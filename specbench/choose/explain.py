"""A ranking in words: why the best is the best, what would let the next one win, and where the paper's formula errs."""

from collections.abc import Iterable, Mapping

from specbench import theory
from specbench.measure.predict import Prediction, Predictions

TINY = 1e-4
SAME_STEPS = 0.03  # of a target step: cheaper by less than this is no argument


def reasons(table: Predictions) -> list[str]:
    """Sentences, the most important first."""
    best = table.ranked[0]
    said = [_headline(best), *_gammas(table)]
    others = {one.draft: one for one in reversed(table.ranked) if one.draft != best.draft}
    for other in sorted(others.values(), key=lambda one: -one.calibrated.value):
        said.append(_against(table, best, other))
        said.append(_would_win(best, other))
    said += _paper(table)
    return said


def _label(one: Prediction) -> str:
    return f"{one.draft} with γ={one.gamma}"


def _headline(best: Prediction) -> str:
    value = best.calibrated.value
    if value < 1:
        why = (
            f"α={best.alpha.value:.2f} is not above c={best.cost.c:.2f} (Cor 3.9)"
            if best.alpha.value <= best.cost.c
            else f"{best.tokens_per_pass:.2f} tokens a pass cost {best.steps_per_pass:.2f} target steps"
        )
        return f"no draft helps here: the best, {_label(best)}, would run at {value:.2f}× the target's own speed; {why}"
    return (
        f"{_label(best)}: {best.tokens_per_pass:.2f} tokens a pass for {best.steps_per_pass:.2f} target steps, "
        f"{value:.2f}× faster; a pass of all γ costs {_price(best)}"
    )


def _price(one: Prediction) -> str:
    cost = one.cost
    return (
        f"{cost.of_pass(one.gamma):.2f} ({one.gamma * cost.c:.2f} drafting + {cost.verify_cost:.2f} checking "
        f"+ {cost.overhead:.2f} accepting)"
    )


def _gammas(table: Predictions) -> list[str]:
    """Other gammas of the best draft that cannot be told from the best."""
    best = table.ranked[0]
    close = []
    for one in table.ranked[1:]:
        if one.draft == best.draft:
            low = table.times_better((best.draft, best.gamma), (one.draft, one.gamma)).low
            if low is None or low <= 1:
                close.append(one.gamma)
    if not close:
        return []
    return [f"γ={', '.join(str(g) for g in sorted(close))} cannot be told from γ={best.gamma} by these timings"]


def _against(table: Predictions, best: Prediction, other: Prediction) -> str:
    times = table.times_better((best.draft, best.gamma), (other.draft, other.gamma))
    by = f"{100 * (times.value - 1):.0f}%"
    if times.low is not None and times.low <= 1:
        by += ", within the interval"
    verdict = f"{best.draft} beats {other.draft} here by {by}: "
    if other.alpha.value > best.alpha.value:
        return verdict + (
            f"{other.draft} agrees more (α {other.alpha.value:.2f} against {best.alpha.value:.2f}), but its c is "
            f"{other.cost.c:.2f} against {best.cost.c:.2f}, so a pass of all γ costs {_price(other)} target steps"
        )
    if other.gamma * other.cost.c < best.gamma * best.cost.c - SAME_STEPS:
        return verdict + (
            f"{other.draft} is cheaper (c {other.cost.c:.3f} against {best.cost.c:.3f}), but its α of "
            f"{other.alpha.value:.2f} gives {other.tokens_per_pass:.2f} tokens a pass, not {best.tokens_per_pass:.2f}"
        )
    return verdict + (
        f"{other.draft} neither agrees more (α {other.alpha.value:.2f} against {best.alpha.value:.2f}) nor costs less "
        f"(c {other.cost.c:.3f} against {best.cost.c:.3f})"
    )


def _would_win(best: Prediction, other: Prediction) -> str:
    """The c, or else the alpha, at which `other` would catch up, all else (its γ too) as measured."""
    c, alpha = winning_c(best, other), winning_alpha(best, other)
    ways = [f"an α of {alpha:.2f} (it is {other.alpha.value:.2f})"] if alpha is not None else []
    ways += [f"a c of {c:.3f} (it is {other.cost.c:.3f})"] if c is not None else []
    if not ways:
        return f"{_label(other)} cannot win: not even c = 0 or α = 1 would be enough; checking costs too much"
    missing = "" if c is not None else "; no c would be low enough"
    return f"for {_label(other)} to win it would need {' or '.join(ways)}{missing}"


def winning_c(best: Prediction, other: Prediction) -> float | None:
    """The c at which `other` ties; None where not even 0 would do, or where it drafted nothing in these texts."""
    if not other.drafted_per_pass:
        return None
    # All that its passes cost more than those of a tie must come off the tokens that they draft.
    surplus = other.steps_per_pass * (1 - other.calibrated.value / best.calibrated.value)
    c = other.cost.c - surplus / other.drafted_per_pass
    return c if c >= 0 else None


def winning_alpha(best: Prediction, other: Prediction) -> float | None:
    """The alpha at which `other` ties, its tokens growing as Eq. 1 says; None where not even 1 would do."""
    factor = other.calibrated.value / theory.expected_tokens(other.alpha.value, other.gamma)
    low, high = other.alpha.value, 1.0
    if factor * theory.expected_tokens(high, other.gamma) < best.calibrated.value:
        return None
    while high - low > TINY:
        middle = (low + high) / 2
        if factor * theory.expected_tokens(middle, other.gamma) < best.calibrated.value:
            low = middle
        else:
            high = middle
    return high


def of_lossy(table: Predictions, strayed: Mapping[str, float]) -> list[str]:
    """What must be said of lossy ways: how far each strays, and which is the best of those that do not. `strayed` is
    the mean total variation of a token, by the way's name."""
    said = [
        f"{way}: its text is not the target's own; a token strays by {far:.3f} in total variation, computed, as its α, "
        "along the target's own text"
        for way, far in strayed.items()
    ]
    lossless = [one for one in table.ranked if one.draft not in strayed]
    if lossless and table.ranked[0].draft in strayed:
        said.append(
            f"of the lossless ones {_label(lossless[0])} is the best, {lossless[0].calibrated.value:.2f}× faster"
        )
    return said


def of_heads(ways: Iterable[str]) -> list[str]:
    """What must be said of blockwise drafts: they are scored by the head that drafts first (`drafts.blockwise`)."""
    return [
        f"{way}: its α is of the first token that it drafts; those behind it agree less, so above γ=1 its tokens a "
        "pass and its calibrated speedup are upper bounds"
        for way in ways
    ]


def _paper(table: Predictions) -> list[str]:
    """What Theorem 3.8 alone would have picked, where that is something else."""
    best = table.ranked[0]
    theirs = max(table.ranked, key=lambda one: one.predicted)
    if (theirs.draft, theirs.gamma) == (best.draft, best.gamma):
        return []
    return [
        f"Theorem 3.8 alone would pick {_label(theirs)} ({theirs.predicted:.2f}× predicted, "
        f"{theirs.calibrated.value:.2f}× calibrated): it takes checking {theirs.gamma + 1} positions to cost 1 step, "
        f"here it costs {theirs.cost.verify_cost:.2f}, and accepting {theirs.cost.overhead:.2f}"
    ]
