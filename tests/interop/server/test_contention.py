"""Other work on this machine, seen in the streams of a server here."""

from specbench.interop.server.summary import contention
from specbench.interop.server.timing import Load
from specbench.records.served import Answer

STEP_S = 0.02


def stream(steps_s: list[float], tokens: int | None = None) -> Answer:
    """An answer whose pieces came after these steps."""
    arrivals = [sum(steps_s[: place + 1]) for place in range(len(steps_s))]
    return Answer(tokens or len(steps_s), arrivals[-1], arrivals[0], "", None, "length", 1, arrivals)


EVEN = [stream([STEP_S * (1 + 0.1 * (place % 2)) for place in range(60)])]
UNEVEN = [stream([STEP_S * (3 if place % 5 == 0 else 1) for place in range(60)])]


def test_even_steps_are_no_sign_and_uneven_are() -> None:
    assert contention(EVEN, Load(), 1.2, 1.5) == []
    (sign,) = contention(UNEVEN, Load(), 1.2, 1.5)
    assert "neighbouring steps" in sign


def test_a_speedup_above_the_tokens_of_a_pass_is_a_sign() -> None:
    (sign,) = contention(EVEN, Load(), 2.2, 1.3)
    assert "2.20 is impossible with 1.30 tokens per pass" in sign
    assert contention(EVEN, Load(), None, 1.3) == contention(EVEN, Load(), 2.2, None) == []


def test_streams_that_are_no_steps_of_one_request_say_nothing() -> None:
    assert contention(UNEVEN, Load(batch=4), 1.2, 1.5) == []
    assert contention(UNEVEN, Load(rate=2.0), 1.2, 1.5) == []
    together = [stream([STEP_S * (3 if place % 5 == 0 else 1) for place in range(60)], tokens=150)]
    assert contention(together, Load(), 1.2, 1.5) == []


def test_arrivals_are_asked_in_blocks() -> None:
    sizes = {prompts: Load(rate=2.0).block(prompts) for prompts in (1, 7, 15, 16, 20, 32, 100)}
    assert sizes == {1: 1, 7: 7, 15: 15, 16: 8, 20: 10, 32: 8, 100: 25}
