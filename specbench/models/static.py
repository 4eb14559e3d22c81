"""Sessions over preallocated caches and a captured step: the same tokens as `eager`, without the model's Python.

A cache is a set of buffers with room for a number of positions, of which the first `length` count; rolling back is
moving that number. Buffers grow by doubling, so that attention never pays for more than twice what was read, and
go back to the model's pool with their session.
"""

import copy
import time
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.models.base import Prompt
from specbench.models.eager import EagerModel
from specbench.models.graph import Layouts, Lowering, compiled, lower
from specbench.models.hidden import LastRead
from specbench.models.program import LENGTH, Program, Step
from specbench.models.shallow import ShallowSession

FIRST_CAPACITY = 64
SOURCE_STEP = 16  # cross-attention buffers come in multiples of this
USUAL_COUNTS = range(1, 9)  # tokens of one run whose positions are looked up in advance
REMEMBERED_BYTES = 64 * 2**20  # masks and position biases kept between steps


class StaticModel(EagerModel):
    """An `EagerModel` whose sessions run a captured step."""

    engine = "static"
    lowering: Lowering = staticmethod(lower)

    def __init__(
        self, network: Any, vocabulary_size: int, eos_ids: frozenset[int], layouts: Layouts | None = None
    ) -> None:
        super().__init__(network, vocabulary_size, eos_ids)
        began = time.perf_counter()
        self.layouts = layouts or Layouts()
        self.program = Program.of(network, self._cache_dtype(network), self.lowering, self.layouts)
        self.buffers = Buffers(self.program, self.device)
        self.positions, self.sources = Remembered(), Remembered()
        self._prepare()
        self.warmup_s = time.perf_counter() - began

    def _prepare(self) -> None:
        with torch.inference_mode():
            StaticSession(self, Prompt((0,) if self.is_encoder_decoder else (), (0,))).remember(USUAL_COUNTS)

    def _alike(self, network: Any) -> "StaticModel":
        return type(self)(network, self.vocabulary_size, self.eos_ids, self.layouts)

    @staticmethod
    def _cache_dtype(network: Any) -> torch.dtype:
        """On CPU attention over bf16 is slower than over fp32, which also is the more exact; see kernels.attend."""
        dtype: torch.dtype = network.dtype
        return torch.promote_types(dtype, torch.float32) if network.device.type == "cpu" else dtype

    def start(self, prompt: Prompt) -> "StaticSession":
        return StaticSession(self, prompt)


class CompiledModel(StaticModel):
    """A `StaticModel` whose steps torch.compile makes ready. Needs a C++ compiler, and a minute or so in all."""

    engine = "compile"
    lowering: Lowering = staticmethod(compiled)


class Remembered:
    """What depends on lengths alone, by (step, length of the text or of the source, tokens, capacity); emptied when it
    grows large."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int, int], tuple[Tensor, ...]] = {}
        self._bytes = 0

    def get(self, key: tuple[int, int, int, int]) -> tuple[Tensor, ...] | None:
        return self._kept.get(key)

    def keep(self, key: tuple[int, int, int, int], found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`found`, which is given at every `get` from now on."""
        found = tuple(tensor.contiguous() for tensor in found)
        self._bytes += sum(tensor.nbytes for tensor in found)
        if self._bytes > REMEMBERED_BYTES:
            self._kept.clear()
            self._bytes = 0
        self._kept[key] = found
        return found


class Buffers:
    """Caches that no session uses at the moment, by their number of positions."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self.program = program
        self.device = device
        self._free: dict[tuple[str, int], list[list[Tensor]]] = {}

    def take(self, kind: str, positions: int) -> list[Tensor]:
        """Buffers for `kind` ('self' or 'cross') attention. What they hold is finite, and stale."""
        free = self._free.setdefault((kind, positions), [])
        if free:
            return free.pop()
        return [
            torch.zeros(1, heads, positions, channels, dtype=self.program.cache_dtype, device=self.device)
            for heads, channels in self.program.shapes[kind]
        ]

    def give_back(self, held: dict[str, list[Tensor]]) -> None:
        for kind, buffers in held.items():
            if buffers:
                self._free[kind, buffers[0].shape[2]].append(buffers)


class StaticSession:
    """One sequence: buffers, and how many of their positions count."""

    def __init__(self, model: StaticModel, prompt: Prompt) -> None:
        self.model = model
        self.length = self.ahead = self.ahead_layers = 0
        self._parts: dict[int, StaticSession] = {}
        self._last = LastRead()
        self._held: dict[str, list[Tensor]] = {"self": [], "cross": []}
        weakref.finalize(self, model.buffers.give_back, self._held)
        self._sources = len(prompt.source)
        self._source_length = torch.tensor(len(prompt.source), device=model.device)
        with torch.inference_mode():
            if model.program.encode is not None:
                self._read_source(prompt.source)
            self._reserve(max(FIRST_CAPACITY, len(prompt.prefix)))
            if len(prompt.prefix) > 1:
                self._run(prompt.prefix[:-1], last_row=True)  # a long prompt's logits are of no use, and large

    def extend(self, tokens: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            return self._run(tokens)

    def rollback(self, length: int) -> None:
        self.level()
        self.length = min(self.length, length)

    def shallow(self, layers: int) -> ShallowSession:
        """A session of the first `layers` layers that goes on from where this one is; one at a time."""
        return ShallowSession(self, layers)

    def level(self) -> None:
        self.ahead = 0  # what the buffers hold behind `length` does not count, and is written over

    def crop_ahead(self, tokens: int) -> None:
        self.ahead -= tokens

    def read_ahead(self, layers: int, tokens: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            self._make_room(self.length + self.ahead + len(tokens))
            part = self._part(layers)
            part.length = self.length + self.ahead
            logits_LV = part._run(tokens)
        self.ahead += len(tokens)
        return logits_LV

    def _part(self, layers: int) -> "StaticSession":
        """This session with the first layers' program, over these layers' buffers."""
        if layers not in self._parts:
            part = self._parts[layers] = copy.copy(self)
            model = self.model.shallow(layers)
            assert isinstance(model, StaticModel)
            part.model, part._parts = model, {}
            used = {kind: len(shapes) for kind, shapes in model.program.shapes.items()}
            part._buffers = [*self._held["self"][: used["self"]], *self._held["cross"][: used["cross"]]]
        return self._parts[layers]

    def _read_source(self, source: Sequence[int]) -> None:
        positions = -(-len(source) // SOURCE_STEP) * SOURCE_STEP
        self._held["cross"] = self.model.buffers.take("cross", positions)
        assert self.model.program.encode is not None
        states = self.model.program.encode(self.model.ids(source))
        for buffer, state in zip(self._held["cross"], states, strict=True):
            buffer[:, :, : len(source)] = state

    def _reserve(self, needed: int) -> None:
        """Room for `needed` positions, in the next power of two; what was read moves along."""
        old, read = self._held["self"], self.length + max(0, self.ahead)
        capacity = 1 << (needed - 1).bit_length()
        self._held["self"] = new = self.model.buffers.take("self", capacity)
        for before, after in zip(old, new, strict=False):
            after[:, :, :read] = before[:, :, :read]
        self.model.buffers.give_back({"self": old})
        self._capacity = capacity
        self._buffers = [*new, *self._held["cross"]]
        self._parts.clear()

    def _make_room(self, needed: int) -> None:
        if needed > self._capacity:
            self._reserve(needed)

    def _run(self, tokens: Sequence[int], last_row: bool = False) -> Tensor:
        count = len(tokens)
        self.level()
        self._make_room(self.length + count)
        program = self.model.program
        step = program.one if count == 1 else program.last if last_row else program.several
        logits_LV = self._step(step, tokens)
        self.length += count
        self._last.keep(logits_LV, self.model.state_width, self.length)
        return logits_LV

    def states(self, start: int, stop: int) -> Tensor | None:
        return self._last.states(start, stop)

    def _step(self, step: Step, tokens: Sequence[int]) -> Tensor:
        count = len(tokens)
        # The step proper reads no lengths: what depends on them is looked up, and computed the first time only.
        inputs = [self.model.ids(tokens), self._source_length, self._source_length, *self._buffers]
        key = (id(step), self._sources, count, self._capacity)
        of_source = self.model.sources.get(key)
        if of_source is None:
            of_source = self.model.sources.keep(key, step.of_source(*inputs))
        return step.run(*inputs, *of_source, *self._of_length(step, count, inputs, of_source))

    def _of_length(
        self, step: Step, count: int, inputs: list[Tensor], of_source: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        key = (id(step), self.length, count, self._capacity)
        found = self.model.positions.get(key)
        if found is None:
            inputs[LENGTH] = torch.tensor(self.length, device=self.model.device)
            found = self.model.positions.keep(key, step.of_length(*inputs, *of_source))
        return found

    def remember(self, counts: Sequence[int]) -> None:
        """Look up all positions of the first buffers once, for runs over so many tokens, so that no later step pays."""
        program, began = self.model.program, self.length
        end = min(self._capacity, self.model.longest or self._capacity)
        for count in counts:
            step = program.one if count == 1 else program.several
            inputs = [self.model.ids([0] * count), self._source_length, self._source_length, *self._buffers]
            of_source = step.of_source(*inputs)
            for self.length in range(began, end - count + 1):
                self._of_length(step, count, inputs, of_source)
        self.length = began
