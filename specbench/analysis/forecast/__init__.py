"""Predicted tokens a pass and speedups.

Passes that a fixed gamma needs for a completion, from q / p at each of its tokens.

Eq. 1 takes one alpha for all positions, independently. Real completions have easy and hard stretches, and they end: the
last pass emits less. Here a completion is walked from its first token with the ratios of its own tokens
(`Agreement.ratio`), so nothing is assumed but that the draft answers alike to the same completion, wherever its
proposal began; of drafts that do not (blockwise heads, copies from one place) the ratios of tokens further ahead are
taken (`Agreement.ahead`). At T = 0 the count is the very one that decoding gives; at T > 0 it is the expectation over
the acceptance draws, given the completion.

Given the completion, a pass that began at s keeps its tokens up to i with the chance
- prod_{s <= j <= i} min(1, q_j / p_j) where each token is tested alone (Algorithm 1, and a `TokenRule` by its own
  chances);
- min_{k <= i} prod_{s <= j <= k} q_j / p_j, at most 1, under block verification: x_s ... x_i are drafted with prod q_j
  and then kept with w_i (`acceptance.rules.block`: the chance that at least i of these drafted tokens stay), and the
  completion has them with prod p_j. A token that is likelier under q than under p so makes up for one that is not.

Works on plain numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEGLIGIBLE = 1e-9
SURPLUS = 1e12  # products of ratios are cut here, so that none becomes infinite


class Walked(NamedTuple):
    """Expected passes over a completion, and what happens at each position of their proposals.

    `passes` [2, gamma + 1]: how many draft 0, 1, ... gamma tokens; the first pass of the completion, and all others.
    `positions` [gamma, 2]: expected passes that reach a position, and of these the accepted. A token that was not
    proposed counts as rejected; the last token of the completion does not count, since it saves no pass.
    """

    passes: NDArray[np.float64]
    positions: NDArray[np.float64]


def walk(
    ratio: Sequence[float],
    gamma: int,
    most: int | None = None,
    silent: Sequence[bool] = (),
    stops: float | None = 0.0,
    whole: bool = False,
    ahead: Sequence[Sequence[float | None]] | None = None,
) -> Walked:
    """Walk this completion in passes that draft 0, 1, ... gamma tokens: its first pass, and all others.

    Args:
        ratio: q / p of each token.
        gamma: tokens a pass.
        most: the limit on new tokens; None: no limit. A shorter completion ended by itself, so that its last token can
            be drafted and accepted. Near the limit a pass drafts no more tokens than there is room for.
        silent: positions at which the draft proposes nothing.
        stops: the completion does not show the tokens drafted after a rejection; this is the probability, at each token
            from the rejected token on, that the draft ends its proposal there, as a model does when it draws the end of
            the completion. None: this draft never ends a proposal early, not at the end of the completion either.
        whole: a drafted block is tested as a whole (block verification).
        ahead: the ratios of the second, third, ... token of a proposal at that token, if they differ from those of the
            first, which are `ratio`; None where a proposal is shorter.
    """
    length = len(ratio)
    most = length + gamma + 1 if most is None else max(most, length)
    found, positions = np.zeros((2, gamma + 1)), np.zeros((gamma, 2))
    # Expected passes that begin at each token; the last entry is the end of the completion.
    begun = np.zeros(length + 1)
    begun[0] = 1.0
    drafted_more = [_stopping(stops or 0.0, room) for room in range(gamma + 1)]
    for start in range(length):
        chance = begun[start]
        if chance < NEGLIGIBLE:
            continue
        counts = found[min(start, 1)]
        drafted = 0 if silent and silent[start] else _proposed(start, min(gamma, most - start - 1), ahead)
        reached, product = chance, 1.0
        for place in range(start, min(start + drafted, length)):
            accepted = place - start
            here = (ahead[accepted - 1][place] if ahead and accepted else ratio[place]) or 0.0
            product = min(product * here, SURPLUS)
            kept = min(reached, chance * product) if whole else reached * min(1.0, here)
            if place < length - 1:
                positions[accepted] += reached, kept
            rejected = reached - kept
            begun[min(place + 1, length)] += rejected
            counts[accepted + 1 : drafted + 1] += rejected * drafted_more[drafted - accepted]
            reached = kept
            if reached < NEGLIGIBLE:
                break
        else:
            if start + drafted < length:
                begun[start + drafted + 1] += reached  # all kept; the target's own token comes on top
                counts[drafted] += reached
                if drafted < gamma and start + drafted < length - 1:
                    positions[drafted, 0] += reached
            else:
                counts[drafted if stops is None else length - start] += reached  # the completion ends in this proposal
    return Walked(found, positions)


def _proposed(start: int, most: int, ahead: Sequence[Sequence[float | None]] | None) -> int:
    """How long a proposal of up to `most` tokens is that begins at `start`, as far as the completion shows."""
    if ahead is None:
        return most
    for count in range(1, most):
        place = start + count
        if count > len(ahead) or (place < len(ahead[0]) and ahead[count - 1][place] is None):
            return count
    return most


def _stopping(chance: float, room: int) -> NDArray[np.float64]:
    """How likely 1 ... `room` tokens are, if after each the draft stops with `chance`."""
    likely: NDArray[np.float64] = chance * (1 - chance) ** np.arange(room, dtype=np.float64)
    if room:
        likely[-1] = (1 - chance) ** (room - 1)
    return likely
