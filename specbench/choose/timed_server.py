"""Our own batching of a target, timed: turns of closed loops, in which the next prompt starts when a row is free."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specbench.algorithm.batching import Arrivals, Turn, together
from specbench.algorithm.decoding import Decoding, DecodingSpec, autoregress, speculate
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Constant
from specbench.analysis.queueing import Request
from specbench.analysis.turn_costs import SeenTurn, seen
from specbench.choose.candidates import LoadedCandidate
from specbench.engine.batch import Batch
from specbench.engine.session import Prompt
from specbench.experiment.measure import generator_for
from specbench.experiment.runner import require_memory
from specbench.records.decoded import Trace

ALONE = "none"
Key = tuple[str, int]  # a candidate's name, and gamma; ALONE and 0 without a draft


@dataclass(frozen=True)
class Setting:
    """How requests are decoded: without a draft, or with one and a constant gamma."""

    spec: DecodingSpec
    draft: Draft | None = None


@dataclass(frozen=True)
class Server:
    """Our batching of one target: prompts, and the settings that they are decoded with."""

    target: Batch
    prompts: Sequence[Prompt]
    settings: Mapping[Key, Setting]
    seed: int

    def serve(
        self, key: Key, places: Sequence[int], rows: int, times: Sequence[float] | None = None
    ) -> tuple[list[Turn], list[Request], list[Trace]]:
        """Decode the prompts at `places`, which arrive at `times`, or each as soon as a row is free."""
        turns = list[Turn]()
        decodings = (self._decoding(self.settings[key], place) for place in places)
        arriving = decodings if times is None else Arrivals(decodings, times, self.target.now)
        traces = together(arriving, rows, self.target, turns.append)
        return turns, [self._request(place, trace) for place, trace in zip(places, traces, strict=True)], traces

    def _decoding(self, setting: Setting, place: int) -> Decoding:
        stream = "baseline" if setting.draft is None else "speculative"
        generator = generator_for(self.seed, place, stream, self.target.device)
        if setting.draft is None:
            return autoregress(self.target, self.prompts[place], setting.spec, generator)
        return speculate(self.target, setting.draft, self.prompts[place], setting.spec, generator)

    def _request(self, place: int, trace: Trace) -> Request:
        prompt = self.prompts[place]
        emitted = [one.emitted for one in trace.passes] or [1] * len(trace.tokens)
        return Request(len(prompt.source) + len(prompt.prefix), emitted)


@dataclass
class Timed:
    """Measurements of closed loops of one setting: turns, requests by place, and costs of passes by rows."""

    turns: list[SeenTurn]
    requests: dict[int, Request]
    parts_s: dict[int, list[tuple[float, float]]]  # by rows: drafting, verifying

    def part_s(self, rows: int, which: int) -> float | None:
        found = self.parts_s.get(rows)
        return sum(one[which] for one in found) / len(found) if found else None


def timed_round(server: Server, nodes: Sequence[int], number: int) -> dict[Key, Timed]:
    """A closed loop at each number of rows, for each setting in random order; every prompt decodes once a setting."""
    draw = random.Random(f"{server.seed}, {number}")
    return {
        key: closed_loops(server, key, nodes, draw) for key in draw.sample(list(server.settings), len(server.settings))
    }


def closed_loops(server: Server, key: Key, nodes: Sequence[int], draw: random.Random) -> Timed:
    """A closed loop of one setting at each number of rows; the prompts are shared among them."""
    timed = Timed([], {}, defaultdict(list))
    places = draw.sample(range(len(server.prompts)), len(server.prompts))
    for share, rows in enumerate(draw.sample(list(nodes), len(nodes))):
        these = places[share :: len(nodes)]
        turns, requests, traces = server.serve(key, these, rows)
        timed.turns += seen(turns, requests)
        timed.requests |= dict(zip(these, requests, strict=True))
        for trace in traces:
            for one, at in zip(trace.passes, trace.rows or (), strict=False):  # a target alone has steps
                if one.drafted == key[1]:
                    timed.parts_s[at].append((one.draft_s / key[1], one.verify_s))
    return timed


def server_of(candidates: Sequence[LoadedCandidate]) -> Server:
    """Our batching with every draft and gamma of `candidates`, which share a target."""
    first = candidates[0]
    rows = max(first.config.batches)
    settings: dict[Key, Setting] = {(ALONE, 0): Setting(first.parts.spec)}
    for one in candidates:
        require_memory(replace(one.parts, config=replace(one.parts.config, batch=rows)))
        draft = one.parts.draft.in_batch(rows)
        for gamma in sorted(set(one.config.gammas)):
            settings[one.name, gamma] = Setting(replace(one.parts.spec, gamma=Constant(gamma)), draft)
    return Server(Batch.of(first.parts.target, rows), first.parts.prompts, settings, first.config.seed)
