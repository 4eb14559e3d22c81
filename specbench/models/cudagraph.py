"""The static step as CUDA graphs: one launch a step, in the place of hundreds.

A graph is captured for each number of new tokens and each set of buffers, at its first use, and replayed after that. It
reads tokens and lengths from tensors that stay where they are, and computes masks and position biases itself.
What captures is handed in, so that everything here but `CudaCapture` runs in tests on a CPU.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.models.base import Prompt
from specbench.models.graph import PackedWeights
from specbench.models.layout import Layout, chain
from specbench.models.program import Step
from specbench.models.static import StaticModel
from specbench.models.static_session import StaticSession

MOST_TOKENS = 129  # of a captured step: a large tree and its root; longer prompts are read uncaptured
WARM_UPS = 3  # runs before a capture: libraries set themselves up in them


class Captured(Protocol):
    """Work that can be repeated. `replay` gives the same tensor each time, with new content."""

    def replay(self) -> Tensor: ...


class CudaCapture:
    """`work` as a CUDA graph. All graphs share one pool of memory: they never run at the same time."""

    pool: Any = None

    def __init__(self, work: Callable[[], Tensor]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        if CudaCapture.pool is None:
            CudaCapture.pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=CudaCapture.pool):
            self._result = work()

    def replay(self) -> Tensor:
        self._graph.replay()
        return self._result


class CudaGraphModel(StaticModel):
    """A `StaticModel` whose steps are captured graphs. `capture` is CudaCapture but in tests."""

    engine = "cudagraph"

    def __init__(
        self,
        network: Any,
        vocabulary_size: int,
        eos_ids: frozenset[int],
        packed: PackedWeights | None = None,
        capture: Callable[[Callable[[], Tensor]], Captured] = CudaCapture,
    ) -> None:
        super().__init__(network, vocabulary_size, eos_ids, packed)
        self.capture = capture
        self._graphs: dict[tuple[int, ...], StepGraph] = {}

    def _alike(self, network: Any) -> "CudaGraphModel":
        return CudaGraphModel(network, self.vocabulary_size, self.eos_ids, self.packed, self.capture)

    def _prepare(self) -> None:
        """Nothing: a graph computes its positions itself."""

    def start(self, prompt: Prompt) -> "CudaGraphSession":
        return CudaGraphSession(self, prompt)

    def graph(self, step: Step, count: int, buffers: Sequence[Tensor]) -> "StepGraph":
        """The graph of `step` over `count` tokens with these very buffers."""
        # Buffers go back to the pool and never away, so an address names them for good.
        key = (id(step), count, *(buffer.data_ptr() for buffer in buffers))
        if key not in self._graphs:
            began = time.perf_counter()
            self._graphs[key] = StepGraph(self, step, count, buffers)
            self.warmup_s += time.perf_counter() - began
        return self._graphs[key]


class StepGraph:
    """One captured step and the tensors that it reads."""

    def __init__(self, model: CudaGraphModel, step: Step, count: int, buffers: Sequence[Tensor]) -> None:
        self._ids_1L = torch.zeros(1, count, dtype=torch.long, device=model.device)
        self._source_length_1 = torch.ones(1, dtype=torch.long, device=model.device)
        self._layout = [tensor.clone() for tensor in chain(0, count, model.numbers(buffers[0].shape[2])).tensors]
        self._placed: list[Tensor | None] = [None] * len(self._layout)
        self._sources = 1
        inputs = [self._ids_1L, *self._layout, self._source_length_1, *buffers]
        of_sizes = step.of_sizes(*inputs)
        # Capturing runs the step, which writes into slots that count: put back what was there.
        before = [buffer[:, :, :count].clone() for buffer in buffers]
        self._captured = model.capture(lambda: step.following(of_sizes, *inputs))
        for buffer, states in zip(buffers, before, strict=True):
            buffer[:, :, :count] = states

    def run(self, ids_1L: Tensor, layout: Layout, sources: int) -> Tensor:
        """Logits [L, V]."""
        self._ids_1L.copy_(ids_1L)
        for index, tensor in enumerate(layout.tensors):
            if self._placed[index] is not tensor:
                self._placed[index] = tensor
                self._layout[index].copy_(tensor)
        if sources != self._sources:
            self._sources = sources
            self._source_length_1.fill_(sources)
        return self._captured.replay()[0].clone()  # the next replay writes over it


class CudaGraphSession(StaticSession):
    """A static session that replays."""

    model: CudaGraphModel

    def _step(self, step: Step, tokens: Sequence[int]) -> Tensor:
        if len(tokens) > MOST_TOKENS:
            return super()._step(step, tokens)
        count = len(tokens)
        placed = self._looked_up(0, count, lambda: self._layout(count).tensors)
        graph = self.model.graph(step, count, self._buffers)
        return graph.run(self.model.ids(tokens), Layout(*placed), self._sources)
