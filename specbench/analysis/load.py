"""A server under load, simulated: requests arrive, wait for a row of a batch, and decode in passes of all rows.

The simulation takes turns as `algorithm.batching.together` does: requests that have arrived join while rows are free
(their prompts are read one after another), then all rows have a pass, and each emits as many tokens as its completion
had in that pass. What a turn costs is measured in real batches under load (`fit`); what a request emits in each of its
passes is recorded. So nothing is assumed of queues or acceptance, and with exact costs the simulation is exact.

Times are seconds, rates are requests a second. Plain numbers; random numbers come from seeds.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specbench.algorithm.batching import Turn
from specbench.records.documents import ServiceRecord

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
FEWEST = 5  # turns of a kind from which its spread is taken


@dataclass(frozen=True)
class Request:
    """A request: the tokens of its prompt, and what its completion emits in each of its passes."""

    prompt: int
    emitted: Sequence[int]


@dataclass(frozen=True)
class Served:
    """When a request arrived, had its first tokens, and was complete; and how many tokens it has."""

    arrived_s: float
    first_s: float
    end_s: float
    tokens: int

    @property
    def ttft_s(self) -> float:
        """Time to first token, the wait included."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 for a single token."""
        return (self.end_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else 0.0


class TurnCosts(Protocol):
    """What a turn of the batch takes, in seconds."""

    def start_s(self, prompts: Sequence[int], rows: int, draw: random.Random) -> float:
        """Of joining requests, by the tokens of their prompts; `rows` are at work with them."""
        ...

    def pass_s(self, rows: int, joined: int, held: int, draw: random.Random) -> float:
        """Of a pass of `rows` rows that hold so many tokens together, `joined` of which have just joined."""
        ...


def simulate(
    arrivals: Sequence[float], requests: Sequence[Request], costs: TurnCosts, rows: int, seed: int = 0
) -> list[Served]:
    """Serve `requests`, which arrive at `arrivals` (not decreasing), at most `rows` of them at a time."""
    draw, now, taken = random.Random(seed), 0.0, 0
    at_work: list[tuple[int, int]] = []  # (request, passes so far)
    held = [one.prompt for one in requests]
    first, end = [0.0] * len(requests), [0.0] * len(requests)
    while taken < len(requests) or at_work:
        if not at_work:
            now = max(now, arrivals[taken])
        ready = taken
        while ready < len(requests) and ready - taken < rows - len(at_work) and arrivals[ready] <= now:
            ready += 1
        joined, taken = list(range(taken, ready)), ready
        if joined:
            now += costs.start_s([requests[index].prompt for index in joined], len(at_work) + len(joined), draw)
        at_work += [(index, 0) for index in joined]
        now += costs.pass_s(len(at_work), len(joined), sum(held[index] for index, _ in at_work), draw)
        staying = []
        for index, passes in at_work:
            emitted = requests[index].emitted
            held[index] += emitted[passes]
            if passes == 0:
                first[index] = now
            if passes + 1 == len(emitted):
                end[index] = now
            else:
                staying.append((index, passes + 1))
        at_work = staying
    return [Served(arrivals[index], first[index], end[index], sum(one.emitted)) for index, one in enumerate(requests)]


# Arrivals and the SLO.


def poisson(rate: float, requests: int, seed: int) -> list[float]:
    """Arrivals at random, `rate` a second on average, from 0 on; other rates with this seed are the same, stretched."""
    draw = random.Random(seed)
    return list(accumulate(draw.expovariate(1.0) / rate for _ in range(requests)))


@dataclass(frozen=True)
class Promise:
    """A service level: the longest time to first token and time per output token, in seconds."""

    ttft_s: float
    tpot_s: float

    def kept(self, one: Served) -> bool:
        return one.ttft_s <= self.ttft_s and one.tpot_s <= self.tpot_s


def service(served: Sequence[Served], promise: Promise) -> ServiceRecord:
    """What was served, over the whole time from 0 until the last completion."""
    whole = max(one.end_s for one in served)
    kept = sum(map(promise.kept, served))
    return {
        "goodput": kept / whole,
        "kept": kept / len(served),
        "throughput": len(served) / whole,
        "tokens_per_second": sum(one.tokens for one in served) / whole,
        "ttft_s": quantiles([one.ttft_s for one in served]),
        "tpot_s": quantiles([one.tpot_s for one in served]),
    }


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """The smallest of `values` that is not exceeded by a share p of them."""
    ordered = sorted(values)
    return {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in QUANTILES.items()}


# Costs of turns, from turns of real batches.


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
    """The costs of `turns`, by least squares, at these numbers of rows; what would be negative is left out.

    `others` are turns whose starts cost the same: those of the same draft with another gamma.
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
    """What starts took over what `costs` say, by the number of rows at work, where enough were seen."""
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
    """What was seen over what the costs say, scaled so that sums agree; only 1 where little was seen."""
    known = [(one, of) for one, of in zip(took, said, strict=True) if of > 0]
    if len(known) < FEWEST:
        return (1.0,)
    ratios = [one / of for one, of in known]
    mean = sum(ratios) / len(ratios)
    return [one / mean for one in ratios]


# Real batches, in the terms of the simulation.


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
