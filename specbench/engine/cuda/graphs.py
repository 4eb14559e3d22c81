"""The static step as CUDA graphs: one launch per step instead of hundreds.

A graph is captured for each number of new tokens and each set of buffers, before timing starts (`get_ready`), and
replayed after that. A step without a graph runs uncaptured, and is captured before the next prompt. A graph reads
tokens and lengths from tensors that keep their addresses, and computes masks and position biases itself. The gamma
steps of a draft are one graph (`rollout`).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from specbench.engine.capture.lower import PackedWeights
from specbench.engine.capture.program import Step
from specbench.engine.capture.static import StaticModel
from specbench.engine.capture.static_sessions import StaticSession
from specbench.engine.cuda.replayed import (
    Capture,
    CudaCapture,
    FunctionGraph,
    NotCaptured,
    Rollout,
    RolloutGraph,
    StepGraph,
    rollout_graph,
)
from specbench.engine.eager.model import PLAIN, SessionTraits
from specbench.engine.layout import Layout
from specbench.engine.session import Prompt, Tokens
from specbench.sampling import TokenChoice

MOST_TOKENS = 129  # of a captured step: a large tree and its root; longer prompts are read uncaptured
COUNTS = (1, 2, 4, 8, 16, 33, 65, MOST_TOKENS)  # a step over fewer rows is filled up: it costs the same
READY_FOR = 8  # tokens of a step that is captured before anything has asked for it
FIRST_CAPACITY, FIRST_SOURCE, GROWTH = 256, 64, 4  # slots of buffers: few sizes, so few graphs
MOST_GRAPHS = 40  # of a model; each holds its own small tensors, and all share one pool
MOST_FUNCTIONS = 64  # of logits, for the sizes of proposals; each holds as many rows
MOST_ROLLOUTS = 4  # numbers of steps of one choice
FIRST_READS = 1, 2  # tokens that a draft has not read: after a block that was accepted whole two


Key = tuple[Hashable, ...]
Made = StepGraph | RolloutGraph


class CudaGraphModel(StaticModel):
    """A `StaticModel` whose steps are captured graphs. `capture` is CudaCapture but in tests."""

    engine = "cudagraph"
    rolls_out = True
    grows_in_place = False  # graphs are of buffers of the pool
    no_windows = "replays graphs over whole caches (engine=cudagraph)"

    def __init__(
        self,
        network: Any,
        vocabulary_size: int,
        eos_ids: frozenset[int],
        packed: PackedWeights | None = None,
        invariant: bool = False,
        traits: SessionTraits = PLAIN,
        capture: Capture = CudaCapture,
    ) -> None:
        super().__init__(network, vocabulary_size, eos_ids, packed, invariant, traits)
        self.capture = capture
        self._graphs: OrderedDict[Key, Made] = OrderedDict()
        self._asked: dict[Key, Callable[[Capture], Made]] = {}  # for steps that ran uncaptured
        self._functions: OrderedDict[Key, FunctionGraph | Callable[[Capture], FunctionGraph] | None] = OrderedDict()
        self._ready: set[Key] = set()  # sizes of texts that have been got ready for
        self._choice: TokenChoice | None = None  # of the rollouts that are expected
        self._rollouts: tuple[int, ...] = ()  # their steps, the fewest first
        self._largest = max(READY_FOR, self.rows)
        self.captures = self.uncaptured = 0

    def _same_engine(self, network: Any) -> "CudaGraphModel":
        made = CudaGraphModel(
            network, self.vocabulary_size, self.eos_ids, self.packed, self.invariant, capture=self.capture
        )
        made.rows = self.rows
        return made

    def _prepare(self) -> None:
        """Nothing: a graph computes its positions itself."""

    def weights_changed(self) -> None:
        """Graphs hold position biases that were computed from the weights: they are captured again."""
        super().weights_changed()
        self._graphs.clear()
        self._asked.clear()
        self._ready.clear()

    def start(self, prompt: Prompt) -> "CudaGraphSession":
        return CudaGraphSession(self, prompt)

    def capacity(self, needed: int) -> int:
        return _grown(FIRST_CAPACITY, needed)

    def source_slots(self, needed: int) -> int:
        return _grown(FIRST_SOURCE, needed)

    def graph(self, step: Step, count: int, buffers: Sequence[Tensor]) -> StepGraph | None:
        """The graph of `step` over `count` tokens with these buffers.

        None if it has not been captured: the next `get_ready` captures it, since a clock may be running now.
        """
        found = self._found(self._key(id(step), count, buffers))
        if found is None:
            if step is self.program.several:  # not another program's
                self._largest = max(self._largest, count)
            self.ask(step, count, buffers)
        assert not isinstance(found, RolloutGraph)
        return found

    def rollout(self, choice: TokenChoice, count: int, steps: int, buffers: Sequence[Tensor]) -> RolloutGraph | None:
        """The graph of `steps` steps by `choice`, the first over `count` tokens; None as `graph`."""
        found = self._found(self._key((choice, steps), count, buffers))
        if found is None:
            self.ask_rollout(choice, count, steps, buffers)
        assert not isinstance(found, StepGraph)
        return found

    @torch.inference_mode()
    def repeat(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Run `function`, from the second completion on as a graph; the first one asks for it (`Model.repeat`).

        What no graph can hold runs as it is. The function that was idle longest makes room. A function whose rows do
        not depend on each other (`by_row`), as trees of many sizes call, has graphs of the numbers of rows COUNTS.
        """
        if getattr(function, "by_row", False) and (missing := _filled(len(inputs[0])) - len(inputs[0])):
            return self.repeat(function, *(_with_rows(tensor, missing) for tensor in inputs))[:-missing]
        key: Key = (function, *((tensor.shape, tensor.dtype) for tensor in inputs))
        try:
            hash(key)
        except TypeError:
            return function(*inputs)
        if key not in self._functions:
            if len(self._functions) >= MOST_FUNCTIONS:
                self._functions.popitem(last=False)
            self._functions[key] = lambda capture: FunctionGraph(capture, function, examples)
            examples = [tensor.clone() for tensor in inputs]
        self._functions.move_to_end(key)
        found = self._functions[key]
        return found.run(inputs) if isinstance(found, FunctionGraph) else function(*inputs)

    def _found(self, key: Key) -> Made | None:
        if found := self._graphs.get(key):
            self._graphs.move_to_end(key)
        else:
            self.uncaptured += 1
        return found

    def expect_rollouts(self, choice: TokenChoice, steps: Sequence[int]) -> None:
        """Capture rollouts of a few of these numbers of steps: fewer steps are the beginning of more."""
        wanted = [] if self.report.rollout_fell_back else sorted({count for count in steps if count > 0}, reverse=True)
        stride = -(-len(wanted) // MOST_ROLLOUTS) or 1
        self._choice, self._rollouts = choice, tuple(reversed(wanted[::stride]))

    def steps_of_rollout(self, choice: TokenChoice, steps: int) -> int | None:
        """Steps of the rollout that is captured for so many; None if none is."""
        if choice != self._choice or self.rows > 1:
            return None
        return next((count for count in self._rollouts if count >= steps), None)

    def filled(self, rows: int) -> int:
        """The rows of the graph that reads `rows` rows.

        A network that counts its positions itself would also count padding rows: it has a graph for each number.
        """
        return rows if self.placement.counts_itself else _filled(rows)

    def ask(self, step: Step, count: int, buffers: Sequence[Tensor]) -> None:
        """Have this step captured the next time that captures are made."""
        if (key := self._key(id(step), count, buffers)) not in self._graphs:
            held = list(buffers)
            numbers_1C = self.numbers(held[0].shape[2])
            self._asked[key] = lambda capture: StepGraph(capture, step, count, numbers_1C, held)

    def ask_rollout(self, choice: TokenChoice, count: int, steps: int, buffers: Sequence[Tensor]) -> None:
        """Have a rollout of `steps` steps captured the next time that captures are made."""
        if (key := self._key((choice, steps), count, buffers)) not in self._graphs:
            program, held = self.program, list(buffers)
            numbers_1C = self.numbers(held[0].shape[2])
            self._asked[key] = lambda capture: rollout_graph(
                capture, Rollout(program, choice, count, steps, numbers_1C, held)
            )

    @staticmethod
    def _key(what: Hashable, count: int, buffers: Sequence[Tensor]) -> Key:
        # Buffers go back to the pool and never away, so an address names them for good.
        return (what, count, *(buffer.data_ptr() for buffer in buffers))

    @torch.inference_mode()
    def get_ready(self, prompt: Prompt, tokens: int) -> None:
        """Capture, before timing starts, all graphs for up to `tokens` tokens after `prompt`.

        Steps that ran uncaptured since the last call are captured as well.
        """
        began = time.perf_counter()
        end = len(prompt.prefix) + tokens + max(self._rollouts, default=0)
        needed = min(end, self.longest or end)
        sizes = self.source_slots(len(prompt.source)), self.capacity(len(prompt.prefix)), self.capacity(needed)
        wanted = (*sizes, self._largest, self._choice, self._rollouts)
        if wanted not in self._ready:
            self._ready.add(wanted)
            counts = sorted({self.filled(rows) for rows in range(1, self._largest + 1)})
            self.start(prompt).ask_for(needed, counts, self._choice, self._rollouts)
        self.capture_asked()
        for shallow in self._shallow.values():
            assert isinstance(shallow, CudaGraphModel)
            shallow.get_ready(prompt, tokens)
        self.report.warmup_s += time.perf_counter() - began

    def capture_asked(self) -> None:
        """Capture the steps that ran uncaptured since the last time; the graphs that were idle longest make room."""
        for key, made in self._asked.items():
            if len(self._graphs) >= MOST_GRAPHS:
                self._graphs.popitem(last=False)
            try:
                self._graphs[key] = graph = made(self.capture)
            except NotCaptured as error:
                self.report.rollout_fell_back, self._rollouts = str(error), ()
                continue
            if isinstance(graph, RolloutGraph) and (kernels := graph.rollout.kernels):
                self.report.gpu_kernels = kernels | (self.report.gpu_kernels or frozenset())
            self.captures += 1
        self._asked.clear()
        self.capture_repeated()

    @torch.inference_mode()
    def capture_repeated(self) -> None:
        """Capture the functions that were repeated since the last time (`Model.capture_repeated`)."""
        for name, asked in self._functions.items():
            if asked is not None and not isinstance(asked, FunctionGraph):
                try:
                    self._functions[name] = asked(self.capture)
                except RuntimeError:  # it reads values on the host, as a rule of a plug-in may
                    self._functions[name] = None


def _filled(rows: int) -> int:
    return next((count for count in COUNTS if count >= rows), rows)


def _with_rows(tensor: Tensor, more: int) -> Tensor:
    """`tensor` with so many rows more, which are copies of its last."""
    return torch.cat([tensor, tensor[-1:].expand(more, *tensor.shape[1:])])


def _grown(size: int, needed: int) -> int:
    while size < needed:
        size *= GROWTH
    return size


class CudaGraphSession(StaticSession):
    """A static session whose steps replay CUDA graphs if one is captured for their size."""

    model: CudaGraphModel

    def _step(self, step: Step, tokens: Tokens, rows: int) -> Tensor:
        count, of_prompt = len(tokens), step is self.model.program.prompt
        filled = self.model.filled(rows)
        graph = None if of_prompt or filled > MOST_TOKENS else self.model.graph(step, filled, self._buffers)
        if graph is None:
            return super()._step(step, tokens, rows)
        placed = self._looked_up((0, filled), count, lambda: self._layout(count).filled(filled).tensors)
        return graph.run(self._ids(tokens, filled), Layout(*placed), self._sources)[:rows]

    @torch.inference_mode()
    def rollout(
        self, tokens: Sequence[int], choice: TokenChoice, steps: int, uniform_G: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """Draft `steps` tokens by one CUDA graph: `Session.rollout`."""
        captured = self.model.steps_of_rollout(choice, steps)
        if captured is None or len(tokens) not in FIRST_READS:
            return None
        self.drop_ahead()
        end = self.length + len(tokens) + captured - 1
        if end > (self.model.longest or end):
            return None
        self._make_room(end)
        graph = self.model.rollout(choice, len(tokens), captured, self._buffers)
        if graph is None:
            return None
        rolled = graph.run(tokens, self.length, self._sources, steps, uniform_G)
        self.length += len(tokens) + steps - 1
        return rolled

    def ask_for(self, needed: int, counts: Sequence[int], choice: TokenChoice | None, rollouts: Sequence[int]) -> None:
        """Request the graphs of steps over so many tokens, and of rollouts by `choice` of so many steps.

        They are for all buffers that a text of `needed` tokens uses.
        """
        while True:
            for count in counts:
                if count >= self.model.rows:
                    step = self.model.program.one if count == 1 else self.model.program.several
                    self.model.ask(step, count, self._buffers)
            if choice is not None and self.model.rows == 1:
                for steps, count in product(rollouts, FIRST_READS):
                    self.model.ask_rollout(choice, count, steps, self._buffers)
            if self._capacity >= needed:
                break
            self._make_room(self._capacity + 1)
