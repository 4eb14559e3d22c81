"""Where a completion leaves the target's greedy choice, and whether rounding explains it.

The completion is read once, all of it, and every token is compared with the target's best one after the tokens so far.
So one near tie that fell the other way does not hide what comes after it.

In bf16 a step over one token and a step over several round differently, and if the target's two best tokens nearly
tie, either may win. To distinguish this from a fault, the place of a difference is computed both ways, in one pass over
many tokens and one token at a time. Rounding explains it if the token lies no further below the best than this noise
can shift two logits.

Shapes: L positions of a chunk, V tokens of the vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.analysis.acceptance.agreement import logits_along
from specbench.engine.session import Model, Prompt
from specbench.records.prompt_sums import Difference
from specbench.sampling import NOT_FINITE
from specbench.text.stops import Stops

MOST_ROWS = 64  # of logits, held at a time
NOISE_FACTOR = 2.0  # each of the two tokens, the emitted and the best, may move by the noise


def decided(position: int, margin: float, noise: float, departures: int = 0) -> Difference:
    """The difference at `position`, which rounding explains if it moves logits by as much as the `margin`."""
    return Difference(position, margin, noise, margin <= NOISE_FACTOR * noise, departures)


def first_place(baseline: Sequence[int], speculative: Sequence[int]) -> int:
    """The first index at which two completions differ, or the length of the shorter."""
    shorter = min(len(baseline), len(speculative))
    return next((i for i in range(shorter) if baseline[i] != speculative[i]), shorter)


def first_difference(
    target: Model, prompt: Prompt, baseline: Sequence[int], speculative: Sequence[int]
) -> Difference | None:
    """The first difference of two completions, with the margin of the target's two best tokens; None if they are equal.

    For completions whose own tokens are not known (`certify`, of text); others are tested by `departures.difference`.
    """
    if list(baseline) == list(speculative):
        return None
    position = first_place(baseline, speculative)
    tokens = [*prompt.prefix, *baseline[:position]]
    at_once = target.start(prompt)
    row_V = at_once.extend(tokens[at_once.length :])[-1, : target.vocabulary_size].float()
    ((_, step_V, noise),) = read_by_step(target, prompt, tokens, {len(tokens): row_V})
    best = step_V.topk(2).values
    return decided(position, float(best[0] - best[1]), noise)


def read_by_step(
    target: Model, prompt: Prompt, tokens: Sequence[int], rows: Mapping[int, Tensor]
) -> Iterator[tuple[int, Tensor, float]]:
    """The logits [V] at each place of `rows`, read a token at a time, and their largest difference from those.

    `rows` holds the logits [V] of one pass over many tokens, by the place in `tokens` of the token that they predict.
    """
    session = target.start(prompt)
    for place in range(session.length + 1, max(rows) + 1):
        step_V = session.extend([tokens[place - 1]])[-1, : target.vocabulary_size].float()
        if place in rows:
            yield place, step_V, float(torch.nan_to_num(step_V - rows[place], 0.0).abs().max())


@dataclass(frozen=True)
class Departure:
    """A token that is not the target's best.

    Attributes:
        position: its index in the generated tokens.
        margin: by how many logits the best token is above it.
        noise: by how much the logits of that row vary with the way of computing it, measured or as given.
    """

    position: int
    token: int
    best: int
    margin: float
    noise: float

    @property
    def is_rounding(self) -> bool:
        return self.margin <= NOISE_FACTOR * self.noise

    def exceeds(self, close: float) -> bool:
        """Whether neither rounding explains it nor the token lies within `close` logits of the best."""
        return not self.is_rounding and self.margin > close


def departures(
    target: Model, prompt: Prompt, written: Sequence[int], noise: float | None = None, close: float = 0.0
) -> list[Departure]:
    """Every departure of `written` from the target's greedy choice, up to the first that rounding does not explain.

    Args:
        target: the target.
        prompt: the prompt.
        written: the completion.
        noise: how far the logits of who wrote it may lie from the target's; None: as far as measured here.
        close: a departure by so many logits is no reason to stop, either.

    Raises:
        FloatingPointError: logits are not finite.
    """
    tokens, first = [*prompt.prefix, *written], len(prompt.prefix)
    session = target.start(prompt)
    found: list[Departure] = []
    for start, logits_LV in logits_along(session, tokens, first):
        wide_LV = logits_LV[:, : target.vocabulary_size].float()
        highest_L, best_L = wide_LV.max(-1)
        if not bool(highest_L.isfinite().all()):
            raise FloatingPointError(NOT_FINITE)
        written_L = torch.tensor(tokens[start : start + len(wide_LV)], device=wide_LV.device)
        places = (best_L != written_L).nonzero().flatten().tolist()
        for begin in range(0, len(places), MOST_ROWS):
            rows = {start + place: wide_LV[place].clone() for place in places[begin : begin + MOST_ROWS]}
            found += _weighed(target, prompt, tokens, rows, noise, close)
            if found[-1].exceeds(close):
                return found
    return found


def difference(
    target: Model,
    prompt: Prompt,
    baseline: Sequence[int],
    written: Sequence[int],
    limit: int | None = None,
    stops: Stops | None = None,
) -> Difference | None:
    """Whether rounding explains that `written` is not the target's own greedy completion; None if they are equal.

    All of `written` is read, also after the first difference, and each of its tokens must lie within the noise of its
    own row. Reports the first token that does not, otherwise the one whose margin is the largest share of its noise.

    Args:
        target: the target.
        prompt: the prompt of both.
        baseline: the target's own completion, token by token.
        written: the completion in question.
        limit: maximum number of tokens of a completion; with it, a shorter one must end with an end token, or with one
            of `stops`.
        stops: strings that end a completion.

    Raises:
        FloatingPointError: logits are not finite.
    """
    if list(baseline) == list(written):
        return None
    place = first_place(baseline, written)
    found = departures(target, prompt, written)
    if found and not found[-1].is_rounding:
        return decided(found[-1].position, found[-1].margin, found[-1].noise, len(found))
    if place == min(len(baseline), len(written)) or not _ends_in_place(target, written, limit, stops):
        return Difference(place, 0.0, 0.0, is_rounding=False, departures=len(found), misplaced_end=True)
    if not found:  # the target's own completion took the other side of a near tie, and this one the best token
        return decided(place, 0.0, 0.0)
    worst = max(found, key=lambda one: one.margin / one.noise if one.noise else 0.0)
    return decided(worst.position, worst.margin, worst.noise, len(found))


def _ends_in_place(target: Model, written: Sequence[int], limit: int | None, stops: Stops | None) -> bool:
    """Whether an end is the last token, or there is none and the completion is as long as it may be."""
    stopped = None if stops is None else stops.place((), written)
    if any(token in target.eos_ids for token in written[:-1]) or (stopped or len(written)) < len(written):
        return False
    return (
        stopped is not None
        or limit is None
        or len(written) >= limit
        or (bool(written) and written[-1] in target.eos_ids)
    )


def _weighed(
    target: Model, prompt: Prompt, tokens: Sequence[int], rows: dict[int, Tensor], noise: float | None, close: float
) -> list[Departure]:
    """The departures at the places of `rows`, logits of one pass, up to the first that rounding does not explain."""
    found = []
    for place, step_V, moved in read_by_step(target, prompt, tokens, rows):
        token, best = tokens[place], int(step_V.argmax())
        margin = float(step_V[best] - step_V[token])
        allowed = moved if noise is None else max(moved, noise)
        found.append(Departure(place - len(prompt.prefix), token, best, margin, allowed))
        if found[-1].exceeds(close):
            break
    return found
