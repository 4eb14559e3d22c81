"""Passes that a fixed gamma needs for a text, from the chance at each token that a drafted one is kept there.

Eq. 1 takes one alpha for all positions, independently. Real texts have easy stretches and hard ones, and they end: the
last pass emits less. Here a text is walked from its first token with the chances of its own tokens
(`Agreement.kept`), so nothing is assumed but that the draft answers alike to the same text. At T = 0 the count is the
very one that decoding gives; at T > 0 it is the expectation over the acceptance draws, given the text.

Knows plain numbers only.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NEGLIGIBLE = 1e-9


def passes(
    kept: Sequence[float],
    gamma: int,
    most: int | None = None,
    silent: Sequence[bool] = (),
    stops: float | None = 0.0,
) -> NDArray[np.float64]:
    """Expected passes over this text that draft 0, 1, ... gamma tokens; their sum is the expected number of passes.

    A text shorter than `most` (the limit on new tokens) ended by itself, and its last token can be drafted and kept;
    None is no limit. Near the limit a pass drafts no more than there is room for, and one that begins where the draft
    is `silent` drafts nothing. The text does not show what was drafted behind a rejection: `stops` is the chance, at
    each token from the rejected one on, that the draft ends its proposal there, as a model does when it draws the end
    of the text. None: this draft never ends a proposal early, not at the end of the text either.
    """
    length = len(kept)
    most = length + gamma + 1 if most is None else max(most, length)
    counts = np.zeros(gamma + 1)
    begun = np.zeros(length + 1)  # expected passes that begin at each token; the last entry is the end of the text
    begun[0] = 1.0
    drafted_more = [_stopping(stops or 0.0, room) for room in range(gamma + 1)]
    for start in range(length):
        chance = begun[start]
        if chance < NEGLIGIBLE:
            continue
        drafted = 0 if silent and silent[start] else min(gamma, most - start - 1)
        reached = chance
        for place in range(start, min(start + drafted, length)):
            rejected = reached * (1 - kept[place])
            begun[min(place + 1, length)] += rejected
            accepted = place - start
            counts[accepted + 1 : drafted + 1] += rejected * drafted_more[drafted - accepted]
            reached *= kept[place]
            if reached < NEGLIGIBLE:
                break
        else:
            if start + drafted < length:
                begun[start + drafted + 1] += reached  # all kept; the target's own token comes on top
                counts[drafted] += reached
            else:
                counts[drafted if stops is None else length - start] += reached  # the end of the text was drafted
    return counts


def _stopping(chance: float, room: int) -> NDArray[np.float64]:
    """How likely 1 ... `room` tokens are, if after each the draft stops with `chance`."""
    likely: NDArray[np.float64] = chance * (1 - chance) ** np.arange(room, dtype=np.float64)
    if room:
        likely[-1] = (1 - chance) ** (room - 1)
    return likely
