"""Sessions over preallocated caches and a captured step: the same tokens as `eager`, without the model's Python.

A cache is a set of buffers with room for a number of tokens, of which the first `length` count; rolling back is moving
that number. Buffers grow by doubling, so that attention never pays for more than twice what was read, and go back to
the model's pool with their session.
"""

import copy
import time
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.models.base import Prompt
from specbench.models.buffers import BufferPool, Buffers, TensorCache
from specbench.models.eager import EagerModel
from specbench.models.graph import Lowering, PackedWeights, compiled, lower
from specbench.models.hidden import LastRead
from specbench.models.layout import Layout, chain
from specbench.models.program import Program, Step
from specbench.models.shallow import ShallowSession

FIRST_CAPACITY = 64
SOURCE_STEP = 16  # cross-attention buffers come in multiples of this
USUAL_COUNTS = range(1, 9)  # tokens of one run whose positions are looked up in advance


class StaticModel(EagerModel):
    """An `EagerModel` whose sessions run a captured step."""

    engine = "static"
    lowering: Lowering = staticmethod(lower)

    def __init__(
        self, network: Any, vocabulary_size: int, eos_ids: frozenset[int], packed: PackedWeights | None = None
    ) -> None:
        super().__init__(network, vocabulary_size, eos_ids)
        began = time.perf_counter()
        self.packed = packed or PackedWeights()
        self.program = Program.of(network, self._cache_dtype(network), self.lowering, self.packed)
        self.pool = BufferPool(self.program.shapes, self.program.cache_dtype, self.device)
        self.positions, self.sources = TensorCache(), TensorCache()
        self._numbers: dict[int, Tensor] = {}
        self._prepare()
        self.warmup_s = time.perf_counter() - began

    def _prepare(self) -> None:
        with torch.inference_mode():
            StaticSession(self, Prompt((0,) if self.is_encoder_decoder else (), (0,))).look_up(USUAL_COUNTS)

    def _alike(self, network: Any) -> "StaticModel":
        return type(self)(network, self.vocabulary_size, self.eos_ids, self.packed)

    @staticmethod
    def _cache_dtype(network: Any) -> torch.dtype:
        """On CPU attention over bf16 is slower than over fp32, which also is the more exact; see kernels.attend."""
        dtype: torch.dtype = network.dtype
        return torch.promote_types(dtype, torch.float32) if network.device.type == "cpu" else dtype

    def start(self, prompt: Prompt) -> "StaticSession":
        return StaticSession(self, prompt)

    def numbers(self, slots: int) -> Tensor:
        """0 ... `slots` - 1, as one row [1, `slots`]; the same tensor at every call."""
        if slots not in self._numbers:
            self._numbers[slots] = torch.arange(slots, device=self.device).unsqueeze(0)
        return self._numbers[slots]


class CompiledModel(StaticModel):
    """A `StaticModel` whose steps torch.compile makes ready. Needs a C++ compiler, and a minute or so in all."""

    engine = "compile"
    lowering: Lowering = staticmethod(compiled)


class StaticSession:
    """One sequence: buffers, and how many of their slots count."""

    def __init__(self, model: StaticModel, prompt: Prompt) -> None:
        self.model = model
        self.length = self.ahead = self.ahead_layers = 0
        self._parts: dict[int, StaticSession] = {}
        self._last = LastRead()
        self._held: dict[str, Buffers] = {}
        weakref.finalize(self, model.pool.give_back, self._held)
        self._sources = len(prompt.source)
        self._source_length_1 = torch.tensor([len(prompt.source)], device=model.device)
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
        self.ahead = 0  # what the buffers hold past `length` does not count, and is written over

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
            part._held = {kind: buffers.first(len(model.program.shapes[kind])) for kind, buffers in self._held.items()}
            part._collect()
        return self._parts[layers]

    def _read_source(self, source: Sequence[int]) -> None:
        slots = -(-len(source) // SOURCE_STEP) * SOURCE_STEP
        self._held["cross"] = self.model.pool.take("cross", slots)
        assert self.model.program.encode is not None
        states = self.model.program.encode(self.model.ids(source))
        for buffer, state in zip(self._held["cross"].layers, states, strict=True):
            buffer[:, :, : len(source)] = state

    def _reserve(self, needed: int) -> None:
        """Room for `needed` tokens, in the next power of two; what was read moves along."""
        old, self._capacity = self._held.get("self"), 1 << (needed - 1).bit_length()
        new = self.model.pool.take("self", self._capacity)
        if old is not None:
            new.copy_slots(old, self.length + max(0, self.ahead))
            self.model.pool.give_back({"self": old})
        self._held["self"] = new
        self._collect()
        self._parts.clear()

    def _collect(self) -> None:
        """Buffers as a step takes them."""
        self._buffers = [
            tensor for kind in ("self", "cross") if kind in self._held for tensor in self._held[kind].layers
        ]

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
        # The step proper reads no positions: what depends on them is looked up, and computed the first time only.
        ids_1L, count = self.model.ids(tokens), len(tokens)
        fixed = self._of_source(step, ids_1L)
        key = (id(step), self.length, count, self._capacity)
        placed = self.model.positions.get(key)
        if placed is None:
            placed = self.model.positions.put(key, self._placed(step, ids_1L, self._chain(count), fixed))
        return step.run(ids_1L, *placed[:3], self._source_length_1, *self._buffers, *fixed, *placed[3:])[0]

    def _chain(self, count: int) -> Layout:
        return chain(self.length, count, self.model.numbers(self._capacity))

    def _placed(self, step: Step, ids_1L: Tensor, layout: Layout, fixed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`layout`, and what the step computes from it."""
        inputs = (ids_1L, *layout.tensors, self._source_length_1, *self._buffers)
        return *layout.tensors, *step.of_layout(*inputs, *fixed)

    def _of_source(self, step: Step, ids_1L: Tensor) -> tuple[Tensor, ...]:
        """What the step computes from sizes and the source's length."""
        count, cached = ids_1L.shape[1], self.model.sources
        key = (id(step), self._sources, count, self._capacity)
        found = cached.get(key)
        if found is None:
            inputs = (ids_1L, *self._chain(count).tensors, self._source_length_1, *self._buffers)
            of_sizes = step.of_sizes(*inputs)
            found = cached.put(key, (*of_sizes, *step.of_source(*inputs, *of_sizes)))
        return found

    def look_up(self, counts: Sequence[int]) -> None:
        """Compute all positions of the first buffers once, for runs over so many tokens, so that no later step pays."""
        program, began = self.model.program, self.length
        end = min(self._capacity, self.model.longest or self._capacity)
        for count in counts:
            step, ids_1L = program.one if count == 1 else program.several, self.model.ids([0] * count)
            fixed = self._of_source(step, ids_1L)
            for self.length in range(began, end - count + 1):
                key = (id(step), self.length, count, self._capacity)
                self.model.positions.put(key, self._placed(step, ids_1L, self._chain(count), fixed))
        self.length = began
