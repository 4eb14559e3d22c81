"""A captured step, and a captured rollout: the work, and the tensors that it reads, at constant addresses.

What captures is an argument, so that everything here but `CudaCapture` runs in tests on a CPU.

Shapes: L tokens that are read first, G steps, C slots of the self-attention buffers, V tokens of the vocabulary.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.engine.capture.fusing import used
from specbench.engine.capture.program import Headless, Program, Step
from specbench.engine.layout import Layout, chain, ragged
from specbench.engine.operations import fused, usable_fused
from specbench.errors import first_line
from specbench.sampling import Sampling, TokenChoice


class Rollout:
    """`steps` steps over `buffers`, the first over `count` tokens, each other over the token chosen before it.

    Tokens, lengths and random numbers are tensors, and nothing is asked of the host, so that a draft's gamma steps,
    with standardising and choosing, can be captured as one graph.
    """

    def __init__(
        self,
        program: Program,
        choice: TokenChoice,
        count: int,
        steps: int,
        numbers_1C: Tensor,
        buffers: Sequence[Tensor],
    ) -> None:
        device = numbers_1C.device
        self.choice, self._numbers_1C, self.buffers = choice, numbers_1C, list(buffers)
        self.slots = count + steps - 1  # that it writes to
        self.ids_1L = torch.zeros(1, count, dtype=torch.long, device=device)
        self.length_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.source_length_1 = torch.ones(1, dtype=torch.long, device=device)
        self.uniform_G = self.rows_GV = None
        if choice.draws:
            self.uniform_G = torch.zeros(steps, dtype=torch.float64, device=device)
            self.rows_GV = torch.zeros(steps, choice.vocabulary_size, device=device)
        # Where one kernel computes the head and the choice, the steps end before the head.
        self._headless = headless_for(choice, program, device)
        made: Program | Headless = self._headless or program
        first = made.one if count == 1 else made.last if isinstance(made, Headless) else made.several
        self._steps = [first, *[made.one] * (steps - 1)]
        self._of_sizes = {
            step: step.of_sizes(*self._inputs(ids_1L, self.length_1))
            for step, ids_1L in ((first, self.ids_1L), (made.one, self.ids_1L[:, :1]))
        }

    def work(self) -> Tensor:
        """The chosen tokens [G]; the rows that they were drawn from go into `rows_GV`."""
        ids_1L, length_1 = self.ids_1L, self.length_1
        fixed: dict[Step, tuple[Tensor, ...]] = {}
        tokens: list[Tensor] = []
        for index, step in enumerate(self._steps):
            inputs = self._inputs(ids_1L, length_1)
            if step not in fixed:
                of_sizes = self._of_sizes[step]
                fixed[step] = (*of_sizes, *step.of_source(*inputs, *of_sizes))
            uniform_1 = None if self.uniform_G is None else self.uniform_G[index : index + 1]
            token_1, row_1V = self._chosen(step.placed(fixed[step], *inputs), uniform_1)
            if self.rows_GV is not None and row_1V is not None:
                self.rows_GV[index : index + 1].copy_(row_1V)
            tokens.append(token_1)
            length_1 = length_1 + ids_1L.shape[1]
            ids_1L = token_1.clamp(min=0).unsqueeze(0)  # NOT_DRAWN is no token
        return torch.cat(tokens)

    def _chosen(self, states_1LX: Tensor, uniform_1: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The token [1] by the last logits, or by the states that the head reads, and the row of a draw."""
        if self._headless is None:
            return self.choice.on_device(states_1LX[0, -1:], uniform_1)
        size = self.choice.vocabulary_size
        head = states_1LX[:, -1:], self._headless.weight_VE, self._headless.bias_V, size
        if uniform_1 is None:
            return fused.head_argmax(*head), None
        return fused.head_drawn(*head, self.choice.sampling.temperature, uniform_1)

    @property
    def kernels(self) -> frozenset[str]:
        """The fused kernels of its steps and of the choice, by name."""
        of_steps = used(step.run for step in self._steps)
        return of_steps if self._headless is None else of_steps | {chooser(self.choice)}

    def _inputs(self, ids_1L: Tensor, length_1: Tensor) -> list[Tensor]:
        layout = ragged(length_1, ids_1L.shape[1], self._numbers_1C, self._numbers_1C)
        return [ids_1L, *layout.tensors, self.source_length_1, *self.buffers]


def chooser(choice: TokenChoice) -> str:
    """The name of the kernel that computes a head and `choice`."""
    return "head_drawn" if choice.draws else "head_argmax"


def headless_for(choice: TokenChoice, program: Program, device: torch.device) -> Headless | None:
    """The steps of `program` that end before their head, where a kernel on `device` computes it and `choice`.

    It draws at any temperature, among all tokens.
    """
    every_token = not choice.draws or choice.sampling == Sampling(choice.sampling.temperature)
    return program.headless if every_token and chooser(choice) in usable_fused.agreeing(device) else None


WARM_UPS = 3  # runs before a capture: libraries set themselves up in them


class Captured(Protocol):
    """Work that can be repeated. `replay` gives the same tensor each time, with new content."""

    def replay(self) -> Tensor: ...


class CudaCapture:
    """`work` as a CUDA graph. All graphs share one pool of memory: they never run at the same time."""

    pool: Any = None
    anchor: Any = (
        None  # a graph that lives as long as the process: a pool whose graphs are all gone cannot be used again
    )

    def __init__(self, work: Callable[[], Tensor]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        if CudaCapture.pool is None:
            CudaCapture.pool = torch.cuda.graph_pool_handle()
            CudaCapture.anchor = torch.cuda.CUDAGraph()
            with torch.cuda.graph(CudaCapture.anchor, pool=CudaCapture.pool):
                torch.zeros(1, device="cuda")
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=CudaCapture.pool):
            self._result = work()

    def replay(self) -> Tensor:
        self._graph.replay()
        return self._result


Capture = Callable[[Callable[[], Tensor]], Captured]


class StepGraph:
    """One captured step and the tensors that it reads."""

    def __init__(self, capture: Capture, step: Step, count: int, numbers_1C: Tensor, buffers: Sequence[Tensor]) -> None:
        self._ids_1L = torch.zeros(1, count, dtype=torch.long, device=numbers_1C.device)
        self._source_length_1 = torch.ones(1, dtype=torch.long, device=numbers_1C.device)
        self._layout = [tensor.clone() for tensor in chain(0, count, numbers_1C).tensors]
        self._placed: list[Tensor | None] = [None] * len(self._layout)
        self._sources = 1
        inputs = [self._ids_1L, *self._layout, self._source_length_1, *buffers]
        of_sizes = step.of_sizes(*inputs)
        # A graph reads addresses: what was allocated outside of it must live as long as it does. It is also found by
        # the id of its step and the addresses of its buffers.
        self._kept = step, inputs, of_sizes
        with _unchanged(buffers, count):
            self._captured = capture(lambda: step.after_sizes(of_sizes, *inputs))

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


class RolloutGraph:
    """A captured rollout and the tensors that it reads."""

    def __init__(self, capture: Capture, rollout: Rollout) -> None:
        self.rollout = rollout
        with _unchanged(rollout.buffers, rollout.slots):
            self._captured = capture(rollout.work)

    def run(
        self, tokens: Sequence[int], length: int, sources: int, steps: int, uniform_G: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The first `steps` tokens [G] and their rows [G, V]."""
        inputs = self.rollout
        for index, token in enumerate(tokens):  # a fill takes its number along: no copy from the host to wait for
            inputs.ids_1L[:, index].fill_(token)
        inputs.length_1.fill_(length)
        inputs.source_length_1.fill_(sources)
        if inputs.uniform_G is not None and uniform_G is not None:
            inputs.uniform_G[:steps].copy_(uniform_G)
        tokens_G, rows_GV = self._captured.replay()[:steps].clone(), inputs.rows_GV  # the next replay writes over both
        return tokens_G, None if rows_GV is None else rows_GV[:steps].clone()


class FunctionGraph:
    """A captured function of tensors, and the tensors that it reads."""

    def __init__(self, capture: Capture, function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
        self._inputs = inputs = [tensor.clone() for tensor in inputs]
        self._captured = capture(lambda: function(*inputs))

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        return self._captured.replay().clone()  # the next replay writes over it


class NotCaptured(RuntimeError):
    """Raised, with the reason, if a rollout cannot be captured as one CUDA graph."""


def rollout_graph(capture: Capture, rollout: Rollout) -> RolloutGraph:
    """The graph of `rollout`. Raises NotCaptured, and warns, if it cannot be captured."""
    try:
        return RolloutGraph(capture, rollout)
    except RuntimeError as error:
        reason = first_line(error)
        warnings.warn(
            f"the draft's steps are no graph: {reason}; it drafts step by step, which is slower", stacklevel=2
        )
        raise NotCaptured(reason) from error


@contextmanager
def _unchanged(buffers: Sequence[Tensor], count: int) -> Iterator[None]:
    """Capturing runs a step, which writes into the first `count` slots; their content is restored."""
    before = [buffer[:, :, :count].clone() for buffer in buffers]
    yield
    for buffer, states in zip(buffers, before, strict=True):
        buffer[:, :, :count] = states
