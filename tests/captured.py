"""Engines in tests: what `auto` comes to here, and what stands for a CUDA graph on a CPU."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from specbench.engine.capture.program import Step
from specbench.engine.capture.static import StaticModel
from specbench.engine.choice import KINDS
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.cuda.replayed import StepGraph
from specbench.engine.native.compiler import NotCompiled, library


def fastest_on_a_cpu() -> str:
    """The fastest engine on a CPU: native where there is a C compiler."""
    try:
        library()
    except NotCompiled:
        return "static"
    return "native"


def fastest(network: Any, vocabulary_size: int, eos_ids: frozenset[int]) -> StaticModel:
    """`network` in that engine."""
    return KINDS[fastest_on_a_cpu()](network, vocabulary_size, eos_ids)


class Repeated:
    """The work runs again on the same tensors; its result keeps its place, as a replayed graph's does."""

    def __init__(self, work: Callable[[], Tensor]) -> None:
        for _ in range(3):
            self._result = work()
        self._work = work

    def replay(self) -> Tensor:
        return self._result.copy_(self._work())


class CapturesAtOnce(CudaGraphModel):
    """Captures a step where it is first asked for, so that a walk through a session replays graphs from the start."""

    def graph(self, step: Step, count: int, buffers: Sequence[Tensor]) -> StepGraph | None:
        if (found := super().graph(step, count, buffers)) is None:
            self.capture_asked()
            found = super().graph(step, count, buffers)
        return found

    def _alike(self, network: Any) -> CudaGraphModel:
        return CapturesAtOnce(network, self.vocabulary_size, self.eos_ids, self.packed, self.invariant, self.capture)


def graphs(
    network: Any, vocabulary_size: int = 40, eos_ids: frozenset[int] = frozenset({1}), invariant: bool = False
) -> CudaGraphModel:
    return CapturesAtOnce(network, vocabulary_size, eos_ids, invariant=invariant, capture=Repeated)


def graphs_before_the_clock(
    network: Any, vocabulary_size: int = 40, eos_ids: frozenset[int] = frozenset({1})
) -> CudaGraphModel:
    """As the engine is: captured between texts alone."""
    return CudaGraphModel(network, vocabulary_size, eos_ids, capture=Repeated)
