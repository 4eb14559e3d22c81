"""Findings from where a draft is accepted: past a length of context, in later turns, from a position of a pass on."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from specbench.analysis.findings.finding import CHANCE, Observed, binomial_tail, falls, mean
from specbench.records.draft_signs import Finding

FALLEN = 0.5  # of alpha before: the most alpha after a fall that is a finding
NOTHING = 0.1  # of alpha before: less is a draft that is cut off
SHORTEST = 16  # tokens of context
CERTAIN = 0.4  # acceptance before a cliff, of drafts that are accepted less often the further ahead
LOST = {True: 0.9, False: 0.7}  # of what teacher forcing expects, greedy or sampled: passes that accept less are wrong
EXPECTED = 15.0  # acceptances, fewer show nothing


def context(seen: Observed) -> Finding | None:
    """Acceptance falls past a length of context, and what cheap drafts name does not."""
    longest = max((text.start + len(text.beta) for text in seen.texts), default=0)
    lengths = [length for power in range(4, 24) for length in (2**power, 3 * 2 ** (power - 1)) if length < longest]
    drops = {length: _before_and_after(seen, seen.betas, length) for length in lengths if length >= SHORTEST}
    fallen = {length: mean(before) - mean(after) for length, (before, after) in drops.items() if _halved(before, after)}
    shown = {length: drop for length, drop in fallen.items() if falls(*drops[length], seen.groups)}
    if not shown:
        return None
    length = max(shown, key=shown.__getitem__)
    before, after = map(mean, drops[length])
    for hits in (seen.cheap.bigram, seen.cheap.lookup):
        cheap_before, cheap_after = map(mean, _before_and_after(seen, hits, length))
        if cheap_before > 0 and after / before > FALLEN * cheap_after / cheap_before:
            return None
    said = f"α is {before:.2f} up to {length:,} tokens of context and {after:.2f} beyond, on text that is no harder"
    evidence = {"length": length, "before": before, "after": after}
    if after < NOTHING * before:
        return Finding(
            "context",
            f"{said}: the draft is cut off there",
            "its max_position_embeddings, its sliding window, and whether its cache holds so many tokens",
            evidence,
        )
    return Finding(
        "context",
        f"{said}: the draft sees positions, or tokens, that it was not trained with",
        "its RoPE type, base and scaling, and its sliding window and the layers that have it",
        evidence,
    )


def turns(seen: Observed) -> Finding | None:
    """Acceptance falls from the first turn of conversations to later ones."""
    first, later = (
        [text.beta if (text.turn > 1) == is_later else [] for text in seen.texts] for is_later in (False, True)
    )
    if not any(later) or not _halved(first, later) or not falls(first, later, seen.groups):
        return None
    return Finding(
        "turns",
        f"α is {mean(first):.2f} in first turns and {mean(later):.2f} in later turns",
        "whether the draft reads the whole conversation, in the target's chat template, and how long its context is",
        {"first": mean(first), "later": mean(later)},
    )


def cliff(seen: Observed) -> Finding | None:
    """No token is accepted from a position of the proposals on."""
    return cliff_of(seen.positions, seen.falls)


def cliff_of(positions: Sequence[tuple[int, int]], falling: bool = False) -> Finding | None:
    """The finding from how often each position was reached and accepted.

    `falling`: the draft is accepted less often the further ahead it drafts.
    """
    for place, (first, second) in enumerate(pairwise(positions), 1):
        if not first[0] or not second[0]:
            break
        before, (reached, accepted) = first[1] / first[0], second
        hardly = accepted == 0 and before >= CERTAIN if falling else accepted < NOTHING * before * reached
        if not hardly or binomial_tail(accepted, reached, before / 2) >= 1 / CHANCE:
            continue
        return Finding(
            "cliff",
            f"{accepted or 'none'} of {reached:,} passes that reached position {place + 1} accepted it; position "
            f"{place} is accepted {100 * before:.0f} times in 100: γ above {place} cannot pay",
            "how many heads or positions the draft has, its sliding window, and what it reads after its own tokens",
            {"position": place + 1, "reached": reached, "accepted": accepted, "before": before},
        )
    return None


def cache(seen: Observed) -> Finding | None:
    """Passes accept less often than teacher forcing at the same places."""
    count, expected, accepted = (sum(column) for column in zip(*seen.starts, strict=True)) if seen.starts else (0, 0, 0)
    if expected < EXPECTED or accepted > LOST[seen.temperature == 0] * expected:
        return None
    return Finding(
        "cache",
        f"teacher forcing accepts the first draft token in {expected:.0f} of {count} passes, and the passes accepted "
        f"it in {accepted}: the draft reads something else while it drafts",
        "its cache after a rejection (rollback, positions), and which token it reads first in a pass",
        {"passes": count, "expected": expected, "accepted": accepted},
    )


def _halved(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> bool:
    return any(before) and any(after) and mean(after) < FALLEN * mean(before)


def _before_and_after(
    seen: Observed, rows: Sequence[Sequence[float]], length: int
) -> tuple[list[Sequence[float]], list[Sequence[float]]]:
    """The numbers of each text's tokens with fewer than `length` tokens of context, and of the others."""
    at: Callable[[int], int] = lambda start: max(0, length - start)  # noqa: E731
    places = [at(text.start) for text in seen.texts]
    return (
        [row[:place] for row, place in zip(rows, places, strict=True)],
        [row[place:] for row, place in zip(rows, places, strict=True)],
    )
