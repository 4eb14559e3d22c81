"""The loads that are simulated, what is promised at each, and the rows that the simulations give."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import cast

import numpy as np

from specbench import border
from specbench.analysis.arrivals import Promise, poisson, quantiles, service
from specbench.analysis.costs.core_time import disturbed_by
from specbench.analysis.queueing import Served, simulate
from specbench.analysis.turn_costs import Costs, SeenTurn, fit
from specbench.choose.timed_server import ALONE, Key, Server, Timed
from specbench.config.verbs import LoadConfig
from specbench.errors import UserError
from specbench.records.choosing import LoadRow, LoadSpan, ServedRow, ServiceRecord
from specbench.report.load_tables import best_at

LOADS = (0.3, 0.5, 0.7, 0.85, 1.0, 1.2)  # of what the target alone serves
DRAWS = 20  # simulations of each load: of as many arrivals, or of a real run's
TTFT, TPOT = 20.0, 2.0  # the default promise, in steps of the target alone with all rows at work


@dataclass(frozen=True)
class Real:
    """The requests that our batching served, turns of closed loops around it, and the share of waiting for a core."""

    served: list[Served]
    around: list[SeenTurn]
    waited: float | None


@dataclass(frozen=True)
class Plan:
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
    ) -> "Plan":
        costs = costs_of(timed, nodes)
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
        return Plan(
            timed, costs, nodes[-1], requests, places, rates, capacity, promise, config.seed, config.verify, recorded
        )

    def arrivals(self, rate: float, seed: int) -> list[float]:
        if self.recorded is None:
            return poisson(rate, self.requests, seed)
        stretch = self.requests / (self.recorded[self.requests - 1] * rate)
        return [stretch * time for time in self.recorded[: self.requests]]

    def simulated(self, key: Key, rate: float, arrivals: int, draw: int, slower: float = 1.0) -> list[Served]:
        """The requests of one setting, for a draw of turns' times; arrivals 0 are the real runs'."""
        requests, seed = [self.timed[key].requests[place] for place in self.places], self.seed
        times, costs = self.arrivals(rate, seed + arrivals), self.costs[key].times(slower)
        return simulate(times, requests, costs, self.rows, seed + draw)

    def row(self, key: Key, rate: float) -> LoadRow:
        """The served requests and tokens, over several simulated arrivals."""
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

    def checked_row(self, key: Key, rate: float, real: Real) -> ServedRow:
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
        """The gamma of `candidate` with most tokens per second by number of rows; 0 if none is as fast as none."""
        keys, held = [(ALONE, 0), *(key for key in self.costs if key[0] == candidate)], self.held()
        found = list[LoadSpan]()
        for rows in range(1, self.rows + 1):
            fastest = max(keys, key=lambda key: self.tokens_per_pass(key) / self.costs[key].steady_s(rows, held))
            same = found.pop() if found and found[-1].gamma == fastest[1] else LoadSpan(rows, rows, fastest[1])
            found.append(replace(same, last=rows))
        if found[-1].gamma == 0:
            found[-1] = replace(found[-1], last=None)
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


def setting_name(key: Key) -> str:
    """A setting in words: the candidate and its gamma."""
    return "without a draft" if key[0] == ALONE else f"{key[0]}, γ={key[1]}"


def recorded_arrivals(config: LoadConfig) -> list[float] | None:
    """The recorded arrivals, from 0 on. Raises UserError if the file has none."""
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


def costs_of(timed: Mapping[Key, Timed], nodes: Sequence[int]) -> dict[Key, Costs]:
    """The costs of each setting, fitted to its own turns and the candidate's turns at other gammas."""

    def others(name: str, gamma: int) -> list[SeenTurn]:
        return [turn for key, one in timed.items() if key[0] == name and key[1] != gamma for turn in one.turns]

    return {key: fit(one.turns, nodes, others(*key)) for key, one in timed.items()}
