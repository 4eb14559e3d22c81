"""Costs of turns, from turns of real batches; and real batches in the terms of the simulation."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specbench.algorithm.batching import Turn
from specbench.analysis.queueing import Request, Served

FEWEST = 5  # turns of a kind from which its spread is taken


@dataclass(frozen=True)
class SeenTurn:
    """A turn of a real batch: rows, those that joined with the tokens of their prompts, tokens held, seconds."""

    rows: int
    prompts: Sequence[int]
    held: int
    start_s: float
    pass_s: float


@dataclass(frozen=True)
class Costs:
    """Costs that are linear in what a turn has, with the spread of the turns that they are fitted to.

    A start costs `join_s` a request and `token_s` a token of its prompt, times what `start_at` says by rows at work:
    with few, many passes lie between two starts, and the encoder's weights are in no cache. A pass costs what `at` says
    by rows, `first_s` for each row that has just joined, and `held_s` for each token that rows hold. Between two
    numbers of rows both are linear.
    `spread` holds what turns took over what this says, whose mean is 1: of starts, and of passes.
    """

    join_s: float
    token_s: float
    at: dict[int, float]
    first_s: float
    held_s: float
    start_at: dict[int, float] = field(default_factory=lambda: {1: 1.0})
    spread: tuple[Sequence[float], Sequence[float]] = ((1.0,), (1.0,))

    def start_s(self, prompts: Sequence[int], rows: int, draw: random.Random) -> float:
        return self._start_s(prompts, rows) * draw.choice(self.spread[0])

    def pass_s(self, rows: int, joined: int, held: int, draw: random.Random) -> float:
        return self._pass_s(rows, joined, held) * draw.choice(self.spread[1])

    def _start_s(self, prompts: Sequence[int], rows: int) -> float:
        return (self.join_s * len(prompts) + self.token_s * sum(prompts)) * _between(self.start_at, rows)

    def _pass_s(self, rows: int, joined: int, held: int) -> float:
        return _between(self.at, rows) + self.first_s * joined + self.held_s * held

    def drift(self, turns: Sequence[SeenTurn]) -> float:
        """How much longer `turns` took than this says."""
        said = sum(
            self._start_s(one.prompts, one.rows) + self._pass_s(one.rows, len(one.prompts), one.held) for one in turns
        )
        return sum(one.start_s + one.pass_s for one in turns) / said

    def times(self, factor: float) -> "Costs":
        """These costs on a machine that takes `factor` times as long."""
        at = {rows: factor * seconds for rows, seconds in self.at.items()}
        linear = (factor * one for one in (self.join_s, self.token_s, self.first_s, self.held_s))
        join_s, token_s, first_s, held_s = linear
        return replace(self, join_s=join_s, token_s=token_s, at=at, first_s=first_s, held_s=held_s)

    def steady_s(self, rows: int, held: float) -> float:
        """A pass in which nobody joins, of rows that hold `held` tokens each."""
        return self._pass_s(rows, 0, round(rows * held))


def _between(known: Mapping[int, float], rows: int) -> float:
    at = sorted(known)
    return float(np.interp(rows, at, [known[one] for one in at]))


def fit(turns: Sequence[SeenTurn], rows: Sequence[int], others: Sequence[SeenTurn] = ()) -> Costs:
    """The costs of `turns`, by least squares, at these numbers of rows; negative costs are left out.

    `others` are turns whose starts cost the same: turns of the same draft with another gamma.
    """
    starts = [one for one in (*turns, *others) if one.prompts]
    x = np.array([[len(one.prompts), sum(one.prompts)] for one in starts], float)
    join_s, token_s = _not_negative(x, np.array([one.start_s for one in starts]), 1)
    nodes = sorted({one for one in rows if any(turn.rows == one for turn in turns)})
    hats = np.array([np.interp([turn.rows for turn in turns], nodes, row) for row in np.eye(len(nodes))]).T
    more = np.array([[len(one.prompts), one.held] for one in turns], float)
    passes = np.array([one.pass_s for one in turns])
    *at, first_s, held_s = _not_negative(np.hstack([hats, more]), passes, len(nodes))
    bare = Costs(join_s, token_s, dict(zip(nodes, at, strict=True)), first_s, held_s)
    bare = replace(bare, start_at=_over_said(starts, nodes, bare) or bare.start_at)
    said = [bare._pass_s(one.rows, len(one.prompts), one.held) for one in turns]
    spread = (
        _spread([one.start_s for one in starts], [bare._start_s(one.prompts, one.rows) for one in starts]),
        _spread([one.pass_s for one in turns], said),
    )
    return replace(bare, spread=spread)


def _over_said(starts: Sequence[SeenTurn], nodes: Sequence[int], costs: Costs) -> dict[int, float]:
    """The measured time of starts over the time by `costs`, by the number of rows at work, if enough were seen."""
    found = dict[int, float]()
    for rows in nodes:
        seen_here = [one for one in starts if one.rows == rows]
        said = sum(costs._start_s(one.prompts, one.rows) for one in seen_here)
        if len(seen_here) >= FEWEST and said > 0:
            found[rows] = sum(one.start_s for one in seen_here) / said
    return found


def _not_negative(x_TK: NDArray[np.float64], seconds_T: NDArray[np.float64], kept: int) -> list[float]:
    """Least squares; while a coefficient is negative, the last one after the first `kept` is set to 0."""
    columns = x_TK.shape[1]
    for count in range(columns, kept - 1, -1):
        found = np.linalg.lstsq(x_TK[:, :count], seconds_T, rcond=None)[0]
        if count == kept or found.min() >= 0:
            return [*map(float, found), *[0.0] * (columns - count)]
    raise AssertionError(kept)


def _spread(took: Sequence[float], said: Sequence[float]) -> Sequence[float]:
    """Ratios of measured times to times by the costs, scaled so that sums agree; only 1 if few were seen."""
    known = [(one, of) for one, of in zip(took, said, strict=True) if of > 0]
    if len(known) < FEWEST:
        return (1.0,)
    ratios = [one / of for one, of in known]
    mean = sum(ratios) / len(ratios)
    return [one / mean for one in ratios]


def seen(turns: Sequence[Turn], requests: Sequence[Request]) -> list[SeenTurn]:
    """The turns of a batch that served `requests`, with what its rows held."""
    held, passes = [one.prompt for one in requests], [0] * len(requests)
    found = []
    for turn in turns:
        prompts, holds = [requests[index].prompt for index in turn.joined], sum(held[index] for index in turn.rows)
        took = turn.started_s - turn.began_s, turn.ended_s - turn.started_s
        found.append(SeenTurn(len(turn.rows), prompts, holds, *took))
        for index in turn.rows:
            held[index] += requests[index].emitted[passes[index]]
            passes[index] += 1
    return found


def served(turns: Sequence[Turn], arrivals: Sequence[float], requests: Sequence[Request]) -> list[Served]:
    """When each of `requests` was served in `turns`."""
    first, end = dict[int, float](), dict[int, float]()
    for turn in turns:
        for index in turn.rows:
            first.setdefault(index, turn.ended_s)
            end[index] = turn.ended_s
    return [
        Served(arrived, first[index], end[index], sum(request.emitted))
        for index, (arrived, request) in enumerate(zip(arrivals, requests, strict=True))
    ]
