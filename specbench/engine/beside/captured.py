"""A network beside the target as captured steps of the target's engine.

Shapes: L new entries, C slots, S tokens of the source, F numbers of a state that an entry joins, W numbers that a step
returns.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from specbench.engine.beside.declared import Beside, ByDistance, Entries, EntrySession, Source, States, StepOf
from specbench.engine.beside.eager import EagerEntries
from specbench.engine.buffers import CACHED_OF_TREES, BufferPool, TensorCache
from specbench.engine.capture import marking, saved_captures
from specbench.engine.capture.hoist import hoist
from specbench.engine.capture.lower import Lowering, PackedWeights
from specbench.engine.capture.nodes import capture, example_sizes
from specbench.engine.capture.program import ROUNDING, Step, largest_difference, make_step, without_collecting
from specbench.engine.capture.rewrite import for_one_token, with_merged_weights, without_repetition
from specbench.engine.capture.static import StaticModel
from specbench.engine.capture.static_sessions import tokens_at_once
from specbench.engine.cuda.graphs import MOST_TOKENS, CudaGraphModel
from specbench.engine.eager.model import ids_on
from specbench.engine.layout import Layout, Sight, chain, mask_bias
from specbench.engine.native.lookups import Lookups
from specbench.engine.native.native_sessions import NativeSession
from specbench.engine.native.whole import WholeStep
from specbench.engine.session import Session, Tokens
from specbench.errors import first_line

Probe = Callable[[EntrySession], list[Tensor]]  # logits of runs that use each step of a session
PROBED_SOURCE = 4  # tokens of the source that a probe reads
MOST_FILLS = 4  # of the ids of a step on a GPU


class BesideProgram:
    """The steps of a network, captured.

    Attributes:
        one: by name, of steps over one entry.
        several: over any number from 2.
        cached: files that the captures were read from.
        shapes: (heads, channels) of each buffer for 'self' and 'cross' attention.
    """

    @without_collecting()
    def __init__(self, beside: Beside, cache_dtype: torch.dtype, lowering: Lowering, weights: PackedWeights) -> None:
        """Raises whatever the modules raise if they cannot be captured."""
        self.cache_dtype, self.cached = cache_dtype, list[Path]()
        self.shapes = {"self": list(beside.caches)} | ({"cross": list(beside.crosses)} if beside.crosses else {})
        self.one, self.several = dict[str, Step](), dict[str, Step]()
        for name, step in beside.steps.items():
            sizes = hoist(with_merged_weights(self._graph(beside, name, step)), [], with_constants=True)

            def made(graph: GraphModule, one_token: bool, sizes: Any = sizes) -> Step:
                return make_step(sizes, graph, lambda module: lowering(module, weights, one_token))

            if step.least == 1:
                self.one[name] = made(for_one_token(sizes.rest), True)
            self.several[name] = made(sizes.rest, False)

    def of(self, name: str, count: int) -> Step:
        """The step over so many entries."""
        return self.one[name] if count == 1 else self.several[name]

    def _graph(self, beside: Beside, name: str, step: StepOf) -> GraphModule:
        """The graph of a step, from the cache if it is there; then its file is added to `cached`."""
        modules, device, shapes = _Modules(beside), beside.weight.device, self.shapes
        taken = {size for tensor in modules.parameters() for size in tensor.shape} | {step.width}
        taken |= {number for of_kind in shapes.values() for pair in of_kind for number in pair}
        tokens, capacity, source = example_sizes(taken, 3)
        buffers = [
            torch.zeros(1, heads, slots, channels, dtype=self.cache_dtype, device=device)
            for of, slots in (("self", capacity), ("cross", source))
            for heads, channels in shapes.get(of, [])
        ]
        ids = torch.zeros(1, tokens, dtype=torch.long, device=device)
        layout = chain(0, tokens, torch.arange(capacity, device=device).unsqueeze(0))
        inputs = [ids, *(tensor.clone() for tensor in layout.tensors), ids.new_ones(1), *buffers]
        if step.width:
            inputs.append(beside.weight.new_zeros(1, tokens, step.width))

        def make() -> tuple[GraphModule, bool]:
            return without_repetition(capture(_of_tensors(step, len(beside.caches)), inputs)), False

        found = saved_captures.cached_capture(modules, [name, str(self.cache_dtype), beside.settings], make)
        if found.file is not None:
            self.cached.append(found.file)
        return found.graph


class _Modules(nn.Module):
    """All modules that a step runs, also the target's: the digest of a capture covers them."""

    def __init__(self, beside: Beside) -> None:
        super().__init__()
        self.device, self.kind = beside.weight.device, type(beside.network)
        for name, module in [*beside.network.named_children(), *beside.borrowed.items()]:
            self.add_module(name, module)
        for name, buffer in beside.network.named_buffers(recurse=False):
            self.register_buffer(name, buffer)


def _of_tensors(step: StepOf, own: int) -> Callable[..., Tensor]:
    """`step` as a function of only tensors: the inputs of a `Step`, `own` buffers, the source's buffers, states."""

    def run(
        ids: Tensor, slots: Tensor, positions: Tensor, visible: Tensor, source_length: Tensor, *others: Tensor
    ) -> Tensor:
        buffers, of_source = others[:own], others[own : len(others) - (step.width > 0)]
        layout, sources = Layout(slots, positions, visible), list[Source]()
        if of_source:
            numbers = torch.arange(of_source[0].shape[2], device=ids.device)
            read = (numbers < source_length.unsqueeze(-1))[:, None, None, :]
            bias = mask_bias(read, buffers[0].dtype)
            pairs = zip(of_source[::2], of_source[1::2], strict=True)
            sources = [Source(keys, values, bias, marking.attend) for keys, values in pairs]

        def near(by_distance: ByDistance) -> Tensor | None:
            return by_distance(torch.arange(visible.shape[-1], device=visible.device))

        return step.run(
            Entries(
                ids, others[-1] if step.width else None, layout.new_positions_BL, sources, layout, buffers, True, near,
                marking.write, marking.attend,
            )
        )  # fmt: skip

    return run


class CapturedBeside:
    """`beside` in the engine of `target`: its steps, and what its sessions share."""

    longest = None  # learned positions end at their last row
    invariant = False
    most_rows = None
    rows = 1
    state_width = 0  # its states are its own

    def __init__(self, beside: Beside, target: StaticModel) -> None:
        """Raises whatever the modules raise if they cannot be captured."""
        self.beside = beside
        self.packed = PackedWeights() if target.invariant else target.packed
        self.program = BesideProgram(beside, target.program.cache_dtype, target.lowering, self.packed)
        self.device, self.readable = target.device, max(target.readable, beside.readable)
        self.pool = BufferPool(self.program.shapes, self.program.cache_dtype, self.device)
        self.sources, self.positions, self.tree_positions = TensorCache(), TensorCache(), TensorCache(CACHED_OF_TREES)
        self.numbers, self.capacity, self.source_slots = target.numbers, target.capacity, target.source_slots
        self.blank, self.grows_in_place, self.lookups = target.blank, target.grows_in_place, Lookups()
        self.graphs = Graphs(target) if isinstance(target, CudaGraphModel) else None
        if self.graphs is None:
            CapturedEntries(self, self.blank_sources(1)).look_up_steps()

    def ids(self, tokens: Tokens) -> Tensor:
        """`tokens` [1, L] on the model's device."""
        return ids_on(self.device, tokens, self.readable)

    def blank_sources(self, tokens: int) -> list[States]:
        """Keys and values of a source of so many tokens; the same numbers at each call."""
        draw, shapes = torch.Generator().manual_seed(0), self.beside.crosses
        made = [torch.randn(1, heads, tokens, channels, generator=draw).to(self.device) for heads, channels in shapes]
        return list(zip(made[::2], made[1::2], strict=True))

    def start(self, session: Session) -> "CapturedEntries":
        """The entries of a text, beside a session of the target."""
        return CapturedEntries(self, self.beside.sources(session))


def captured(beside: Beside, target: object, probe: Probe) -> CapturedBeside | None:
    """`beside` in the engine of `target`; None if that captures no steps, or, with a warning, cannot capture it."""
    if not isinstance(target, StaticModel):
        return None
    try:
        return checked(beside, target, probe)
    except Exception as error:  # whatever the modules raise when they are captured
        warnings.warn(
            f"{beside.name} cannot be captured: {first_line(error)}; it runs eagerly, which is slower", stacklevel=2
        )
        return None


def checked(beside: Beside, target: StaticModel, probe: Probe, again: bool = True) -> CapturedBeside:
    """The captured steps, their results compared with the modules'. Raises RuntimeError if they differ."""
    model = CapturedBeside(beside, target)
    sources = model.blank_sources(PROBED_SOURCE)
    with torch.inference_mode():
        ours, own = (probe(one) for one in (CapturedEntries(model, sources), EagerEntries(beside, lambda: sources)))
    difference = largest_difference(ours, own)
    if difference <= ROUNDING[beside.weight.dtype]:
        return model
    if again and model.program.cached:  # captures that are made now may be right
        for file in model.program.cached:
            saved_captures.forget(file)
        return checked(beside, target, probe, again=False)
    raise RuntimeError(f"the compiled step differs from the layer's own by {difference:.2g} of the largest logit")


def entries_of(beside: Beside, captured: CapturedBeside | None, session: Session) -> EntrySession:
    """The entries of a text beside a session of the target: of captured steps if there are any."""
    return EagerEntries(beside, partial(beside.sources, session)) if captured is None else captured.start(session)


class Graphs:
    """Graphs of a network's steps, which its target captures between prompts, and the states that they read."""

    def __init__(self, target: CudaGraphModel) -> None:
        self.target = target
        self._states: dict[tuple[int, int], Tensor] = {}

    def states(self, step: Step, states_LF: Tensor, rows: int) -> Tensor:
        """`states_LF` [1, `rows`, F] at the address that a graph of `step` reads; the last fills the missing rows."""
        key = id(step), rows
        if key not in self._states:
            self._states[key] = states_LF.new_zeros(1, rows, states_LF.shape[1])
        held, count = self._states[key], len(states_LF)
        held[0, :count] = states_LF
        held[0, count:] = states_LF[-1]
        return held


def ids_by_fills(tokens: Sequence[int], device: torch.device) -> Tensor:
    """`tokens` [L] on a GPU. A fill takes its number along: no copy from the host to wait for."""
    runs = [(token, len(list(same))) for token, same in groupby(tokens)]
    if len(runs) > MOST_FILLS:
        return torch.tensor(tokens, device=device)
    ids_L, first = torch.empty(len(tokens), dtype=torch.long, device=device), 0
    for token, count in runs:
        ids_L[first : first + count].fill_(token)
        first += count
    return ids_L


class CapturedEntries(NativeSession):
    """An `EntrySession` of captured steps."""

    model: Any  # a CapturedBeside, which has as much of a NativeModel as a session of entries uses
    reuses_calls = False  # they read this session's own states

    @torch.inference_mode()
    def __init__(self, model: CapturedBeside, sources: Sequence[States]) -> None:
        """`sources`: keys and values of the source, layer by layer; they are copied."""
        self._begin(model)  # type: ignore[arg-type]
        self._sight, self._states = model.beside.sight, dict[tuple[int, int], Tensor]()
        self._sources = sources[0][0].shape[2] if sources else 1
        self._source_length_1 = torch.tensor([self._sources], device=model.device)
        if model.beside.crosses:
            self._held["cross"] = model.pool.take("cross", model.source_slots(self._sources))
            each = [states for pair in sources for states in pair]
            for buffer, states in zip(self._held["cross"].layers, each, strict=True):
                buffer[:, :, : self._sources] = states
        self.reserve(1)

    @property
    def nodes(self) -> int:
        return len(self._tree)

    def at_once(self, count: int) -> int:
        self._make_room(self.length + count)
        return tokens_at_once(self._capacity)

    def run(
        self, name: str, tokens: Sequence[int], states_LF: Tensor | None = None, sight: Sight | None = None
    ) -> Tensor:
        count, own = len(tokens), self.model.beside.sight
        self._make_room(self.length + (self.nodes or count))
        # Only what the network's own sight places follows from a step, a length and a number of entries.
        self._sight, self.in_a_row = sight or own, sight is None
        step = self.model.program.of(name, count)
        found = None if self.model.graphs is None else self._replayed(step, tokens, states_LF)
        return self._run_step(step, tokens, states_LF) if found is None else found

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self._tree.grow(tokens, parents)

    def forget(self) -> None:
        self._tree.close()

    def rollback(self, length: int) -> None:
        self.forget()
        self.length = min(self.length, max(0, length))

    def _layout(self, count: int) -> Layout:
        layout = super()._layout(count)
        return layout if self._sight is None else self._sight(layout, self.length)

    def _looked_up(
        self, what: tuple[object, ...], count: int, compute: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        return super()._looked_up(what if self._sight is None else (*what, self._sight), count, compute)

    def _replayed(self, step: Step, tokens: Sequence[int], states_LF: Tensor | None) -> Tensor | None:
        """The result of a graph of `step`; None if there is none (yet)."""
        graphs, count = self.model.graphs, len(tokens)
        if (filled := graphs.target.filled(count)) > MOST_TOKENS:
            return None
        states = [] if states_LF is None else [graphs.states(step, states_LF, filled)]
        graph = graphs.target.graph(step, filled, [*self._buffers, *states])
        if graph is None:
            return None
        placed = self._looked_up((0, filled), count, lambda: self._layout(count).filled(filled).tensors)
        ids_1L = self._ids(ids_by_fills(tokens, self.model.device), filled)
        found: Tensor = graph.run(ids_1L, Layout(*placed), self._sources)[:count]
        return found

    def _run_step(self, step: Step, tokens: Sequence[int], states_LF: Tensor | None) -> Tensor:
        own, count, in_one = self._buffers, len(tokens), isinstance(step.run, WholeStep)
        if states_LF is not None:
            self._buffers = [*own, self._at_one_place(step, states_LF) if in_one else states_LF.unsqueeze(0)]
        try:
            if isinstance(step.run, WholeStep) and step.run.ids < 0:  # which reads no tokens
                call, results = self._call(step, count), step.run.run.results(1, count)
                call.run(results)
                return results[0][0]
            return self._step(step, tokens, count)
        finally:
            self._buffers = own

    def _at_one_place(self, step: Step, states_LF: Tensor) -> Tensor:
        """`states_LF` [1, L, F] at the address that the call of `step` over so many entries reads."""
        key = id(step), len(states_LF)
        if key not in self._states:
            self._states[key] = torch.empty_like(states_LF, memory_format=torch.contiguous_format).unsqueeze(0)
        self._states[key][0] = states_LF
        return self._states[key]

    @torch.inference_mode()
    def look_up_steps(self) -> None:
        """Compute the positions of the first buffers once, so that no later step pays."""
        beside, own, end = self.model.beside, self._buffers, self._capacity
        for name, usual in beside.steps.items():
            for count in usual.usual:
                step, ids_1L = self.model.program.of(name, count), self._ids([0] * count, count)
                if usual.width:
                    self._buffers = [*own, beside.weight.new_zeros(1, count, usual.width)]
                fixed = self._of_source(step, ids_1L, count)
                for self.length in range(end - count + 1):
                    self._looked_up((id(step), count), count, partial(self._placed, step, ids_1L, count, fixed))
                self._buffers = own
        self.length = 0
