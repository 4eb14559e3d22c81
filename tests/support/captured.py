"""Engines in tests: what `auto` comes to here, and what stands for a CUDA graph on a CPU."""

import gc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specbench.engine.capture.program import Step
from specbench.engine.capture.static import StaticModel
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.cuda.replayed import StepGraph
from specbench.engine.selection import KINDS
from specbench.kernels import NotCompiled, library


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


class _Outside(TorchDispatchMode):
    """Collects, by storage, the tensors that work reads and did not make: a graph has their addresses."""

    def __init__(self, found: dict[int, Tensor]) -> None:
        super().__init__()
        self.found, self.made = found, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and (place := one.untyped_storage()._cdata) not in self.made:
                self.found.setdefault(place, one.detach())
        result = func(*args, **(kwargs or {}))
        known = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        made = (one.untyped_storage()._cdata for one in tree_leaves(result) if isinstance(one, Tensor))
        self.made.update(place for place in made if place not in known)
        return result


class Recording(Repeated):
    """A capture that says which tensors its graphs read that nobody would own if a graph owned nothing, as CUDA's."""

    outside: ClassVar[dict[int, Tensor]] = {}
    captures: ClassVar[list["Recording"]] = []

    def __init__(self, work: Callable[[], Tensor]) -> None:
        with torch.inference_mode(), _Outside(Recording.outside):
            super().__init__(work)
        Recording.captures.append(self)

    @classmethod
    def freed(cls) -> list[tuple[int, ...]]:
        """The shapes of tensors that are gone once the work is dropped; forgets all captures."""
        for capture in cls.captures:
            del capture._work, capture._result
        cls.captures.clear()
        gc.collect()
        alone = [
            tuple(tensor.shape) for tensor in cls.outside.values()
            if torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) <= 2  # held here, and looked at
        ]  # fmt: skip
        cls.outside.clear()
        return alone


class CapturesAtOnce(CudaGraphModel):
    """Captures a step where it is first asked for, so that a walk through a session replays graphs from the start."""

    def graph(self, step: Step, count: int, buffers: Sequence[Tensor]) -> StepGraph | None:
        if (found := super().graph(step, count, buffers)) is None:
            self.capture_asked()
            found = super().graph(step, count, buffers)
        return found

    def _same_engine(self, network: Any) -> CudaGraphModel:
        return CapturesAtOnce(
            network, self.vocabulary_size, self.eos_ids, self.packed, self.invariant, capture=self.capture
        )


def graphs(
    network: Any,
    vocabulary_size: int = 40,
    eos_ids: frozenset[int] = frozenset({1}),
    invariant: bool = False,
    capture: type[Repeated] = Repeated,
) -> CudaGraphModel:
    return CapturesAtOnce(network, vocabulary_size, eos_ids, invariant=invariant, capture=capture)


def graphs_before_the_clock(
    network: Any, vocabulary_size: int = 40, eos_ids: frozenset[int] = frozenset({1})
) -> CudaGraphModel:
    """As the engine is: captured between texts alone."""
    return CudaGraphModel(network, vocabulary_size, eos_ids, capture=Repeated)
