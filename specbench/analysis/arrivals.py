"""Arrivals of requests, and the SLO that they are served within."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from specbench.analysis.queueing import Served
from specbench.records.choosing import ServiceRecord

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


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
    """Served requests and tokens, over the whole time from 0 until the last completion."""
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
