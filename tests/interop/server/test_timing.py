"""Requests at once: what has begun ends, what waits is dropped."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from specbench.interop.server import when_sent
from specbench.interop.server.client import Asked, Client
from specbench.interop.server.when_sent import Load, Request, answers
from specbench.records.served import Answer
from specbench.sampling import Sampling


@pytest.mark.parametrize("load", [Load(batch=2), Load(rate=1000.0)])
def test_an_interrupt_drops_the_requests_that_wait(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    dropped = threading.Event()

    class Slow:
        """Answers once what waits was dropped."""

        def ask(self, prompt: Asked, tokens: int, sampling: Sampling, seed: int) -> Answer:
            asked.append(seed)
            assert dropped.wait(60)
            return Answer(1, 0.05, None, "a", None, "stop")

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            dropped.set()
            super().shutdown(wait=wait)

    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(when_sent, "wait", interrupted)
    monkeypatch.setattr(when_sent, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(when_sent, "MOST_THREADS", 2)
    requests = [Request(Asked(text="a"), 1, Sampling(), seed) for seed in range(40)]
    with pytest.raises(KeyboardInterrupt):
        answers(cast(Client, Slow()), requests, load, 0)
    assert len(asked) <= 2
