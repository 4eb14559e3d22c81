"""Goodput under load: turns of our batching are timed, a simulation serves arrivals at each load, real runs check it.

The costs of turns come from closed loops: a fixed number of rows, in which each completion is replaced at once by the
next request, so that starts, joins and passes are timed as they happen in a server (`turn_costs.fit`). What each
request emits in its passes comes from the same completions. Half of the rounds run before the real runs and half after
them; and a closed loop of the same setting right before and after each real run says how fast the machine was then, by
which the simulation beside it is scaled.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import cast

import numpy as np

from specbench import border
from specbench.algorithm.batching import Arrivals, Turn, together
from specbench.algorithm.decoding import Decoding, DecodingSpec, autoregress, speculate
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Constant
from specbench.analysis.arrivals import Promise, poisson, quantiles, service
from specbench.analysis.costs.core_time import disturbed_by, least_disturbed
from specbench.analysis.costs.probe import already_collected
from specbench.analysis.queueing import Request, Served, simulate
from specbench.analysis.turn_costs import Costs, SeenTurn, fit, seen, served
from specbench.choose.alpha import prepare
from specbench.choose.candidates import LoadedCandidate
from specbench.config.model import name_of
from specbench.config.schema import task_label
from specbench.config.verbs import LoadConfig, as_run
from specbench.engine.batch import Batch
from specbench.engine.session import Prompt
from specbench.environment import environment, hardware
from specbench.errors import UserError
from specbench.escaping import file_name
from specbench.experiment.build import resolve
from specbench.experiment.identity import identify
from specbench.experiment.measure import generator_for
from specbench.experiment.runner import Progress, require_memory, translated_errors
from specbench.files import json_digest
from specbench.loading.model_loader import locked_device
from specbench.records.choosing import LoadDocument, LoadRow, LoadSpan, ServedRow, ServiceRecord
from specbench.records.decoded import Trace
from specbench.records.documents import write_document
from specbench.records.schema import SCHEMA_VERSION
from specbench.report.load_tables import best_at

ALONE = "none"
LOADS = (0.3, 0.5, 0.7, 0.85, 1.0, 1.2)  # of what the target alone serves
DRAWS = 20  # simulations of each load: of as many arrivals, or of those of a real run
TTFT, TPOT = 20.0, 2.0  # the promise where none is given, in steps of the target alone with all rows at work
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
    """What closed loops of one setting showed: turns, requests by place, and costs of passes by rows."""

    turns: list[SeenTurn]
    requests: dict[int, Request]
    parts_s: dict[int, list[tuple[float, float]]]  # by rows: drafting, verifying

    def part_s(self, rows: int, which: int) -> float | None:
        found = self.parts_s.get(rows)
        return sum(one[which] for one in found) / len(found) if found else None


def _timed_round(server: Server, nodes: Sequence[int], number: int) -> dict[Key, Timed]:
    """A closed loop at each number of rows, for each setting in random order; every prompt decodes once a setting."""
    draw = random.Random(f"{server.seed}, {number}")
    return {
        key: _closed_loops(server, key, nodes, draw) for key in draw.sample(list(server.settings), len(server.settings))
    }


def _closed_loops(server: Server, key: Key, nodes: Sequence[int], draw: random.Random) -> Timed:
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


def recommend_load(configs: Sequence[LoadConfig], progress: Progress) -> tuple[Path, LoadDocument]:
    """Goodput of every (draft, gamma) of `configs` and of the target alone at each load, and the best at each.

    Returns:
        The record's file, and the record.

    Raises:
        UserError: several temperatures or contexts, too few prompts, or a config that cannot be batched or measured.
        MachineError: the device, memory, disk or hub does not suffice.
    """
    if len({config.sampling.temperature for config in configs}) > 1:
        raise UserError("sampling.temperature: a recommendation is for one temperature; give one")
    if len({config.context for config in configs}) > 1:
        raise UserError("context: --load is for one context; give one")
    recorded = _recorded(configs[0])
    resolved = resolve(configs[0])
    with locked_device(resolved.device, progress.say) as device, translated_errors(resolved):
        candidates = prepare([replace(config, device=str(device)) for config in configs], progress)
        config = cast(LoadConfig, candidates[0].config)
        server, nodes = _server(candidates), sorted(set(config.batches))
        if len(server.prompts) < 2 * sum(nodes):
            raise UserError(
                f"batch={','.join(map(str, nodes))}: costs of turns are timed over {len(server.prompts)} prompts, and "
                f"these batch sizes need {2 * sum(nodes)}; give more prompts (limit=) or smaller batches"
            )
        timed = {key: Timed([], {}, defaultdict(list)) for key in server.settings}
        waits = list[float | None]()

        def rounds(first: int, last: int) -> None:
            for number in range(first, last):
                progress.say(f"timing turns of our batching, round {number + 1} of {config.rounds}")
                new, waited = least_disturbed(partial(_timed_round, server, nodes, number))
                for key, one in new.items():
                    timed[key].turns += one.turns
                    timed[key].requests |= one.requests
                    for rows, values in one.parts_s.items():
                        timed[key].parts_s[rows] += values
                waits.append(waited)

        with already_collected():
            progress.say("warming up")
            _timed_round(server, nodes, -1)
            rounds(0, -(-config.rounds // 2))
            plan = _Plan.of(config, server, timed, nodes, recorded)
            real = {one: _really(server, plan, *one, nodes, progress) for one in plan.checked()}
            rounds(-(-config.rounds // 2), config.rounds)
    plan = replace(plan, costs=_costs(timed, nodes))
    rows = [plan.row(key, rate) for rate in plan.rates for key in server.settings]
    surroundings = environment()
    best = [best_at([row for row in rows if row["rate"] == rate]) for rate in plan.rates]
    schedules = {one.name: plan.schedule(one.name) for one in candidates}
    known = [one for one in waits if one is not None]
    digest = json_digest([[identify(as_run(one)) for one in configs], asdict(config)])
    name = file_name(f"{name_of(config.target)}-{config.task.name}", f"-T{config.sampling.temperature:g}-{digest}")
    record: LoadDocument = {
        "schema_version": SCHEMA_VERSION,
        "load_id": name,
        "target": name_of(config.target),
        "task": task_label(config.task.name, config.task.path),
        "temperature": config.sampling.temperature,
        "dtype": config.dtype,
        "hardware": hardware(surroundings, config.device),
        "engine": candidates[0].parts.engine,
        "requests": plan.requests,
        "arrivals": config.arrivals or "Poisson",
        "server_rows": plan.rows,
        "promise": asdict(plan.promise),
        "rows": rows,
        "costs": [
            {
                "candidate": key[0], "gamma": key[1], "turns": len(timed[key].turns),
                "tokens_per_pass": plan.tokens_per_pass(key), "join_s": costs.join_s, "token_s": costs.token_s,
                "pass_s": {str(at): seconds for at, seconds in costs.at.items()}, "first_s": costs.first_s,
                "held_s": costs.held_s, "start_at": {str(at): factor for at, factor in costs.start_at.items()},
                "c": plan.over_step(key, 0), "verify_cost": plan.over_step(key, 1),
            }
            for key, costs in plan.costs.items()
        ],
        "best": best,
        "schedules": schedules,
        "reasons": _reasons(best, schedules, plan),
        "verified": [plan.checked_row(*one, found) for one, found in real.items()],
        "alpha_rows": [{"draft": one.draft, "accept": one.rule, "candidate": one.name} for one in candidates],
        "configs": [asdict(one.config) for one in candidates],
        "environment": surroundings,
        "disturbed_by": disturbed_by([], sum(known) / len(known) if known else None),
    }  # fmt: skip
    return write_document(Path(config.results) / "load" / f"{name}.json", record), record


def _server(candidates: Sequence[LoadedCandidate]) -> Server:
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


def _costs(timed: Mapping[Key, Timed], nodes: Sequence[int]) -> dict[Key, Costs]:
    def others(name: str, gamma: int) -> list[SeenTurn]:
        return [turn for key, one in timed.items() if key[0] == name and key[1] != gamma for turn in one.turns]

    return {key: fit(one.turns, nodes, others(*key)) for key, one in timed.items()}


@dataclass(frozen=True)
class _Real:
    """What our batching served, turns of closed loops before and after it, and the share of waiting for a core."""

    served: list[Served]
    around: list[SeenTurn]
    waited: float | None


def _really(server: Server, plan: "_Plan", key: Key, rate: float, nodes: Sequence[int], progress: Progress) -> _Real:
    """What our batching serves at this rate."""
    progress.say(f"serving {plan.requests} requests at {rate:.3g} a second, {_label(key)}")
    times, draw = plan.arrivals(rate, plan.seed), random.Random(server.seed)

    def work() -> tuple[list[Served], list[SeenTurn]]:
        before = _closed_loops(server, key, nodes, draw).turns
        turns, requests, _ = server.serve(key, plan.places, plan.rows, times)
        return served(turns, times, requests), [*before, *_closed_loops(server, key, nodes, draw).turns]

    found, waited = least_disturbed(work)
    return _Real(*found, waited)


@dataclass(frozen=True)
class _Plan:
    """The loads, the promise and the costs of a recommendation."""

    timed: Mapping[Key, Timed]
    costs: Mapping[Key, Costs]
    rows: int
    requests: int
    places: Sequence[int]
    rates: Sequence[float]
    capacity: float
    promise: Promise
    seed: int
    verify: int
    recorded: Sequence[float] | None

    @staticmethod
    def of(
        config: LoadConfig,
        server: Server,
        timed: Mapping[Key, Timed],
        nodes: Sequence[int],
        recorded: Sequence[float] | None,
    ) -> "_Plan":
        costs = _costs(timed, nodes)
        requests = config.requests if recorded is None else min(config.requests, len(recorded))
        draw, places = random.Random(config.seed), list[int]()
        while len(places) < requests:  # every prompt as often
            places += draw.sample(range(len(server.prompts)), len(server.prompts))
        places = places[:requests]
        alone = timed[ALONE, 0].requests
        held = sum(one.prompt + sum(one.emitted) / 2 for one in alone.values()) / len(alone)
        step_s = costs[ALONE, 0].steady_s(nodes[-1], held)
        promise = Promise(
            TTFT * step_s if config.ttft is None else config.ttft / 1000,
            TPOT * step_s if config.tpot is None else config.tpot / 1000,
        )
        whole = simulate([0.0] * requests, [alone[place] for place in places], costs[ALONE, 0], nodes[-1], config.seed)
        capacity = service(whole, promise)["throughput"]
        rates = sorted(set(config.rates)) or [load * capacity for load in LOADS]
        if recorded is not None and not config.rates:
            rates = [requests / recorded[requests - 1]]
        return _Plan(
            timed, costs, nodes[-1], requests, places, rates, capacity, promise, config.seed, config.verify, recorded
        )

    def arrivals(self, rate: float, seed: int) -> list[float]:
        if self.recorded is None:
            return poisson(rate, self.requests, seed)
        stretch = self.requests / (self.recorded[self.requests - 1] * rate)
        return [stretch * time for time in self.recorded[: self.requests]]

    def simulated(self, key: Key, rate: float, arrivals: int, draw: int, slower: float = 1.0) -> list[Served]:
        """The requests of one setting, for a draw of turns' times; arrivals 0 are those of the real runs."""
        requests, seed = [self.timed[key].requests[place] for place in self.places], self.seed
        times, costs = self.arrivals(rate, seed + arrivals), self.costs[key].times(slower)
        return simulate(times, requests, costs, self.rows, seed + draw)

    def row(self, key: Key, rate: float) -> LoadRow:
        """What is served, over several simulated arrivals."""
        draws = [self.simulated(key, rate, draw, draw) for draw in range(DRAWS)]
        each = [service(one, self.promise) for one in draws]
        low, high = np.quantile([one["goodput"] for one in each], [0.025, 0.975])
        return cast(LoadRow, {
            "candidate": key[0], "gamma": key[1], "rate": rate, "load": rate / self.capacity,
            **_mean_service(draws, each), "goodput_low": float(low), "goodput_high": float(high),
        })  # fmt: skip

    def checked(self) -> list[tuple[Key, float]]:
        """Settings and rates to serve for real: at loads spread over all, without a draft and with the best one."""
        count = min(self.verify, len(self.rates))
        places = sorted({round(at * (len(self.rates) - 1) / max(1, count - 1)) for at in range(count)})
        found = list[tuple[Key, float]]()
        for rate in (self.rates[place] for place in places):
            best = best_at([self.row(key, rate) for key in self.costs if key[0] != ALONE])
            found += [((ALONE, 0), rate), ((best["candidate"], best["gamma"]), rate)]
        return found

    def checked_row(self, key: Key, rate: float, real: _Real) -> ServedRow:
        slower = self.costs[key].drift(real.around)
        draws = [self.simulated(key, rate, 0, draw, slower) for draw in range(DRAWS)]
        said = _mean_service(draws, [service(one, self.promise) for one in draws])
        was = service(real.served, self.promise)

        def off(a: float, b: float) -> float | None:
            return a / b - 1 if b else None

        return {
            "candidate": key[0], "gamma": key[1], "rate": rate, "load": rate / self.capacity,
            "slower": slower, "simulated": said, "measured": was,
            "errors": {
                "goodput": off(said["goodput"], was["goodput"]),
                "ttft_p95": off(said["ttft_s"]["p95"], was["ttft_s"]["p95"]),
                "tpot_p95": off(said["tpot_s"]["p95"], was["tpot_s"]["p95"]),
            },
            "disturbed_by": disturbed_by([], real.waited),
        }  # fmt: skip

    def tokens_per_pass(self, key: Key) -> float:
        emitted = [one.emitted for one in self.timed[key].requests.values()]
        return sum(map(sum, emitted)) / sum(map(len, emitted))

    def held(self) -> float:
        """Tokens that a row holds in the mean pass of the target alone."""
        alone = self.timed[ALONE, 0].requests.values()
        return sum(len(one.emitted) * (one.prompt + len(one.emitted) / 2) for one in alone) / sum(
            len(one.emitted) for one in alone
        )

    def over_step(self, key: Key, which: int) -> dict[str, float]:
        """c or v by rows: what drafting a token, or verifying, takes over a step of the target alone."""
        held, found = self.held(), dict[str, float]()
        for rows in self.costs[key].at:
            if (part := self.timed[key].part_s(rows, which)) is not None:
                found[str(rows)] = part / self.costs[ALONE, 0].steady_s(rows, held)
        return found

    def schedule(self, candidate: str) -> list[LoadSpan]:
        """The gamma of `candidate` with the most tokens a second by number of rows; 0 where none is as fast as none."""
        keys, held = [(ALONE, 0), *(key for key in self.costs if key[0] == candidate)], self.held()
        found = list[LoadSpan]()
        for rows in range(1, self.rows + 1):
            fastest = max(keys, key=lambda key: self.tokens_per_pass(key) / self.costs[key].steady_s(rows, held))
            if not found or found[-1]["gamma"] != fastest[1]:
                found.append({"first": rows, "last": rows, "gamma": fastest[1]})
            found[-1]["last"] = rows
        if found[-1]["gamma"] == 0:
            found[-1]["last"] = None
        return found


def _mean_service(draws: Sequence[Sequence[Served]], each: Sequence[ServiceRecord]) -> ServiceRecord:
    """Means over `each`, what was served in each of `draws`, and quantiles over the requests of all draws."""
    every = [one for draw in draws for one in draw]
    return {
        "goodput": fmean(one["goodput"] for one in each),
        "kept": fmean(one["kept"] for one in each),
        "throughput": fmean(one["throughput"] for one in each),
        "tokens_per_second": fmean(one["tokens_per_second"] for one in each),
        "ttft_s": quantiles([one.ttft_s for one in every]),
        "tpot_s": quantiles([one.tpot_s for one in every]),
    }


def _reasons(best: Sequence[LoadRow], schedules: Mapping[str, Sequence[LoadSpan]], plan: _Plan) -> list[str]:
    """What to set, in sentences."""
    lines = [
        f"load 1: the {plan.capacity:.3g} requests a second that the target alone serves when its batch of {plan.rows} "
        "is always full"
    ]
    drafting = [row["load"] for row in best if row["candidate"] != ALONE]
    if not drafting:
        lines.append("a draft pays at no load here")
    elif drafting != [row["load"] for row in best[: len(drafting)]]:
        lines.append(f"a draft pays at these loads alone: {', '.join(f'{load:.2f}' for load in drafting)}")
    elif len(drafting) == len(best):
        lines.append("a draft pays up to the highest load here")
    else:
        lines.append(f"a draft pays up to load {drafting[-1]:.2f}, and not above")
    for name, spans in schedules.items():
        said = ", ".join(f"{_sizes(one)} {one['gamma'] or 'no draft'}" for one in spans)
        lines.append(f"{name}, γ with the most tokens a second by requests that decode at a time: {said}")
    return lines


def _sizes(span: LoadSpan) -> str:
    if span["last"] is None:
        return f"{span['first']}+:"
    return f"{span['first']}:" if span["first"] == span["last"] else f"{span['first']}–{span['last']}:"


def _label(key: Key) -> str:
    return "without a draft" if key[0] == ALONE else f"{key[0]}, γ={key[1]}"


def _recorded(config: LoadConfig) -> list[float] | None:
    """The recorded arrivals, from 0 on. Raises UserError where the file has none."""
    if config.arrivals is None:
        return None
    try:
        lines = border.read_text(Path(config.arrivals)).split()
        times = sorted(map(float, lines))[: config.requests]
    except (OSError, ValueError) as error:
        raise UserError(f"arrivals={config.arrivals}: is not a file of seconds, a line each ({error})") from error
    if len(times) < 2 or not times[-1] > times[0] or not np.isfinite(times).all():
        raise UserError(
            f"arrivals={config.arrivals}: the first {config.requests} requests need two different times, in seconds"
        )
    return [time - times[0] for time in times]
