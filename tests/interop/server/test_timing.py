"""Requests at once: what has begun ends, what waits is dropped."""

import time
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

    class Slow:
        def ask(self, prompt: Asked, tokens: int, sampling: Sampling, seed: int) -> Answer:
            asked.append(seed)
            time.sleep(0.05)
            return Answer(1, 0.05, None, "a", None, "stop")

    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(when_sent, "wait", interrupted)
    monkeypatch.setattr(when_sent, "MOST_THREADS", 2)
    requests = [Request(Asked(text="a"), 1, Sampling(), seed) for seed in range(40)]
    with pytest.raises(KeyboardInterrupt):
        answers(cast(Client, Slow()), requests, load, 0)
    assert len(asked) < 10
