"""A server under load, simulated: requests arrive, wait for a row of a batch, and decode in passes of all rows.

The simulation takes turns as `algorithm.batching.together` does: requests that have arrived join while rows are free
(their prompts are read one after another), then all rows have a pass, and each emits as many tokens as its completion
had in that pass. What a turn costs is measured in real batches under load (`turn_costs.fit`); what a request emits in
each of its passes is recorded. So nothing is assumed of queues or acceptance, and with exact costs the simulation is
exact.

Times are seconds, rates are requests per second. Plain numbers; random numbers come from seeds.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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
    """The time of a turn of the batch, in seconds."""

    def start_s(self, prompts: Sequence[int], rows: int, draw: random.Random) -> float:
        """Seconds of joining requests, by the tokens of their prompts; `rows` are at work with them."""
        ...

    def pass_s(self, rows: int, joined: int, held: int, draw: random.Random) -> float:
        """Seconds of a pass of `rows` rows that hold so many tokens together, `joined` of which have just joined."""
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
