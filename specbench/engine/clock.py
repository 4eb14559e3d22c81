"""How long models run, apart from the loop around them, on a CPU.

On a GPU the host only queues work, so that nothing here is measured there.
"""

from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class RunClock:
    """Seconds that forward passes have taken so far, of all models of this process, which run one after another."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def run(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """The result of `function`, a forward pass. One within another counts once."""
        before, began = self.seconds, perf_counter()
        result = function(*given, **named)
        self.seconds = before + perf_counter() - began
        return result

    def add(self, seconds: float) -> None:
        """Count a forward pass that was timed elsewhere."""
        self.seconds += seconds


RUNS = RunClock()
