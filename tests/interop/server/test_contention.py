"""Other work on this machine, seen in the streams of a server here."""

from specbench.interop.server.server_summary import NONE, contention
from specbench.interop.server.when_sent import Load
from specbench.records.served import Answer
from specbench.stats import Interval

STEP_S = 0.02
NEAR = Interval(1.2, 1.1, 1.3)


def stream(steps_s: list[float], tokens: int | None = None) -> Answer:
    """An answer whose pieces came after these steps."""
    arrivals = [sum(steps_s[: place + 1]) for place in range(len(steps_s))]
    return Answer(tokens or len(steps_s), arrivals[-1], arrivals[0], "", None, "length", 1, arrivals)


EVEN = [stream([STEP_S * (1 + 0.1 * (place % 2)) for place in range(60)])]
UNEVEN = [stream([STEP_S * (3 if place % 5 == 0 else 1) for place in range(60)])]


def test_even_steps_are_no_sign_and_uneven_are() -> None:
    assert contention(EVEN, Load(), NEAR, 1.5) == []
    (sign,) = contention(UNEVEN, Load(), NEAR, 1.5)
    assert "neighbouring steps" in sign


SLOWED = [*EVEN, *EVEN, stream([STEP_S * 4] * 60)]  # other work beside one of three completions


def test_a_speedup_that_slow_steps_bring_above_the_tokens_of_a_pass_is_a_sign() -> None:
    far = Interval(2.2, 1.9, 2.5)
    (sign,) = contention(SLOWED, Load(), far, 1.3)
    assert "2.20 with 1.30 tokens per pass is of slow steps without a draft: the usual step gives 1." in sign
    assert contention(SLOWED, Load(), NONE, 1.3) == contention(SLOWED, Load(), far, None) == []
    assert contention([], Load(), far, 1.3) == []


def test_a_pass_that_is_faster_than_the_usual_step_is_no_sign() -> None:
    """v below 1, as of kernels that are slow for a single row, gives such a speedup on an idle machine."""
    assert contention(EVEN, Load(), Interval(2.2, 1.9, 2.5), 1.3) == []
    assert contention(SLOWED, Load(), Interval(4.2, 3.9, 4.5), 1.3) == [], "by the usual step, too"


def test_a_speedup_that_is_known_roughly_is_no_sign() -> None:
    """A few prompts may give 1.5 where it is 1.3."""
    assert contention(SLOWED, Load(), Interval(1.5, 1.2, 1.9), 1.3) == []
    assert contention(SLOWED, Load(), Interval(1.5, None, None), 1.3) == [], "one prompt"


def test_streams_that_are_no_steps_of_one_request_say_nothing() -> None:
    assert contention(UNEVEN, Load(batch=4), NEAR, 1.5) == []
    assert contention(UNEVEN, Load(rate=2.0), NEAR, 1.5) == []
    together = [stream([STEP_S * (3 if place % 5 == 0 else 1) for place in range(60)], tokens=150)]
    assert contention(together, Load(), NEAR, 1.5) == []


def test_arrivals_are_asked_in_blocks() -> None:
    sizes = {prompts: Load(rate=2.0).block(prompts) for prompts in (1, 7, 15, 16, 20, 32, 100)}
    assert sizes == {1: 1, 7: 7, 15: 15, 16: 8, 20: 10, 32: 8, 100: 25}
