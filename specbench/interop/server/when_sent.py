"""When requests are sent: one after another, several at once, or as they arrive."""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from specbench.interop.server.client import Asked, Client
from specbench.records.served import Answer
from specbench.sampling import Sampling

ROUNDS = 4  # times that a block of several requests at once fills the server: ramps up and down weigh less
BLOCKS = 4  # at least, if there are enough prompts to fill the server in each
ARRIVALS = 8  # of a block with a rate, at least: with fewer requests hardly wait for each other
MOST_THREADS = 512


@dataclass(frozen=True)
class Load:
    """How requests are sent: `batch` at once, each followed by the next; or at `rate` a second."""

    batch: int = 1
    rate: float | None = None

    @property
    def in_blocks(self) -> bool:
        """Whether requests may wait for each other, so that only blocks of prompts are independent."""
        return self.batch > 1 or self.rate is not None

    def block(self, prompts: int) -> int:
        """How many of so many prompts are asked together: several blocks, for an interval over them."""
        if self.rate is not None:
            return math.ceil(prompts / max(1, min(BLOCKS, prompts // ARRIVALS)))
        return 1 if self.batch == 1 else max(self.batch, min(ROUNDS * self.batch, math.ceil(prompts / BLOCKS)))


@dataclass(frozen=True)
class Request:
    """A prompt, and what is asked of it."""

    prompt: Asked
    tokens: int
    sampling: Sampling
    seed: int


def answers(client: Client, requests: Sequence[Request], load: Load, seed: int) -> tuple[list[Answer], float]:
    """The answers in the order of `requests`, and the seconds that all took. Raises what the first failure raises."""
    began = time.perf_counter()
    if load.rate is None and (load.batch == 1 or len(requests) == 1):
        found = [_ask(client, one) for one in requests]
        return found, time.perf_counter() - began
    if load.rate is None:
        with _threads(load.batch) as pool:
            found = _all([pool.submit(_ask, client, one) for one in requests])
        return found, time.perf_counter() - began
    gaps_s = np.random.default_rng(seed).exponential(1 / load.rate, len(requests))
    due_s = np.cumsum(gaps_s) - gaps_s[0]
    with _threads(min(len(requests), MOST_THREADS)) as pool:
        begun = []
        for one, due in zip(requests, due_s, strict=True):
            time.sleep(max(0.0, began + due - time.perf_counter()))
            begun.append(pool.submit(_late, client, one, began + due))
            if any(future.done() and future.exception() for future in begun):
                break
        found = _all(begun)
    return found, time.perf_counter() - began


@contextmanager
def _threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that end with the requests that have begun, also after Ctrl-C: those that wait are dropped."""
    with ThreadPoolExecutor(number) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _ask(client: Client, one: Request) -> Answer:
    return client.ask(one.prompt, one.tokens, one.sampling, one.seed)


def _late(client: Client, one: Request, due: float) -> Answer:
    late_s = max(0.0, time.perf_counter() - due)
    return replace(_ask(client, one), late_s=late_s)


def _all(begun: Sequence["Future[Answer]"]) -> list[Answer]:
    """The results. At the first failure, which is raised, requests that have not begun are dropped."""
    wait(begun, return_when="FIRST_EXCEPTION")
    failed = next((one for one in begun if one.done() and one.exception() is not None), None)
    if failed is not None:
        for other in begun:
            other.cancel()
        failed.result()
    return [one.result() for one in begun]
