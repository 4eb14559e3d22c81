"""A block drafter's layers as captured steps, beside a target of the same engine.

One step makes keys and values of the context, the other is a whole block from its tokens to its logits.

Shapes: L new tokens of the context, or entries of a block, C slots, F numbers of a feature, D width, V logits.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from specbench.engine.buffers import CACHED_OF_TREES, BufferPool, TensorCache
from specbench.engine.capture.cache import cached_capture, forget
from specbench.engine.capture.lower import Lowering, PackedWeights
from specbench.engine.capture.marking import attend as marked_attention
from specbench.engine.capture.marking import write
from specbench.engine.capture.nodes import capture, example_sizes
from specbench.engine.capture.program import ROUNDING, Step, largest_difference, make_step, without_collecting
from specbench.engine.capture.rewrite import for_one_token, hoist, with_merged_weights, without_repetition
from specbench.engine.capture.static import USUAL_COUNTS, StaticModel
from specbench.engine.layout import Layout, chain
from specbench.engine.native.lookups import Lookups
from specbench.engine.native.sessions import NativeSession
from specbench.engine.native.whole import WholeStep
from specbench.errors import first_line
from specbench.methods.decoder_layer import Attend, mask_bias
from specbench.methods.dflash.network import BlockCache, BlockDrafter
from specbench.methods.eagle.captured import Graphs, ReplayedSession
from specbench.methods.eagle.network import Prediction

PROBED = 5  # tokens of the context with which captured steps are compared
READ_AT_ONCE = 256  # tokens of the context, which do not depend on each other: a layout is tokens times slots


class BlockProgram:
    """Steps over (ids, slots, positions, visible, source length, *buffers).

    Attributes:
        context_one: a token of the context, whose state [1, 1, F] is the last input.
        context: several.
        block: a block's entries; returns logits and, in the last D columns, states.
        cached: files that the captures were read from.
        shapes: (heads, channels) of each buffer.
    """

    @without_collecting()
    def __init__(
        self, drafter: BlockDrafter, cache_dtype: torch.dtype, lowering: Lowering, weights: PackedWeights
    ) -> None:
        """`drafter`, bound to its target. Raises whatever its modules raise where they cannot be captured."""
        layer, self.cache_dtype, self.cached = drafter.shape.layer, cache_dtype, list[Path]()
        self.shapes = {"self": [(layer.key_heads, layer.head_width)] * 2 * drafter.shape.layers}

        def step(kind: str, one_token: bool) -> Step:
            graph = _captured(drafter, kind, self.shapes["self"], cache_dtype, self.cached)
            sizes = hoist(with_merged_weights(graph), [], with_constants=True)
            rest = for_one_token(sizes.rest) if one_token else sizes.rest
            return make_step(sizes, rest, lambda module: lowering(module, weights, one_token))

        self.context_one, self.context, self.block = step("context", True), step("context", False), step("block", False)


class _Modules(nn.Module):
    """All modules that a step runs, those of the target too: what the digest of a capture covers."""

    def __init__(self, drafter: BlockDrafter) -> None:
        super().__init__()
        self.device = drafter.device
        for name, module in [*drafter.named_children(), *drafter.borrowed.items()]:
            self.add_module(name, module)


def _captured(
    drafter: BlockDrafter, kind: str, shapes: list[tuple[int, int]], cache_dtype: torch.dtype, files: list[Path]
) -> GraphModule:
    """The graph of a step, from the cache if it is there; then its file is added to `files`."""
    modules, shape, weight = _Modules(drafter), drafter.shape, drafter.fc.weight
    features = len(shape.taps) * shape.layer.width
    taken = {size for tensor in modules.parameters() for size in tensor.shape} | {*sum(shapes, ())} | {features}
    tokens, capacity = example_sizes(taken, 2)
    buffers = [
        torch.zeros(1, heads, capacity, channels, dtype=cache_dtype, device=weight.device) for heads, channels in shapes
    ]
    ids = torch.zeros(1, tokens, dtype=torch.long, device=weight.device)
    layout = chain(0, tokens, torch.arange(capacity, device=weight.device).unsqueeze(0))
    inputs = [ids, *(tensor.clone() for tensor in layout.tensors), ids.new_ones(1), *buffers]
    if kind == "context":
        inputs.append(weight.new_zeros(1, tokens, features))
    step = _context(drafter) if kind == "context" else _block(drafter)

    def make() -> tuple[GraphModule, bool]:
        return without_repetition(capture(step, inputs)), False

    found = cached_capture(modules, [kind, str(cache_dtype), asdict(shape)], make)
    if found.file is not None:
        files.append(found.file)
    return found.graph


def _context(drafter: BlockDrafter) -> Callable[..., Tensor]:
    """The context's step as a function of tensors alone."""
    layers: Any = drafter.layers

    def step(ids: Tensor, slots: Tensor, positions: Tensor, visible: Tensor, _: Tensor, *others: Tensor) -> Tensor:
        *buffers, states = others
        at, placed, context = (
            slots.flatten(),
            Layout(slots, positions, visible).new_positions_BL,
            drafter.context(states),
        )
        for number, layer in enumerate(layers):
            for buffer, made in zip(buffers[2 * number :], layer.keys_values(context, placed), strict=False):
                write(buffer, at, made)
        return context

    return step


def _block(drafter: BlockDrafter) -> Callable[..., Tensor]:
    """A block's step as a function of tensors alone."""

    def step(ids: Tensor, slots: Tensor, positions: Tensor, visible: Tensor, _: Tensor, *buffers: Tensor) -> Tensor:
        at, placed = slots.flatten(), Layout(slots, positions, visible).new_positions_BL
        bias = mask_bias(visible.unsqueeze(1), buffers[0].dtype)

        def attending(number: int) -> Attend:
            keys, values = buffers[2 * number : 2 * number + 2]

            def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                write(keys, at, key)
                write(values, at, value)
                mixed: Tensor = marked_attention(query, keys, values, bias, drafter.shape.layer.scale)
                return mixed

            return attend

        states: Tensor = drafter(
            drafter.embed(ids), placed, [attending(number) for number in range(drafter.shape.layers)]
        )
        return torch.cat([drafter.project(states), states], -1)

    return step


class CapturedBlock:
    """`drafter` in the engine of `target`: its steps, and what its sessions share."""

    longest = None
    invariant = False
    most_rows = None
    rows = 1
    state_width = 0  # its states are its own

    def __init__(self, drafter: BlockDrafter, target: StaticModel) -> None:
        """Raises whatever the layers' modules raise where they cannot be captured."""
        self.packed = PackedWeights() if target.invariant else target.packed
        self.program = BlockProgram(drafter, target.program.cache_dtype, target.lowering, self.packed)
        self.drafter, self.device, self.ids = drafter, target.device, target.ids
        self.pool = BufferPool(self.program.shapes, self.program.cache_dtype, self.device)
        self.sources, self.positions, self.tree_positions = TensorCache(), TensorCache(), TensorCache(CACHED_OF_TREES)
        self.numbers, self.capacity, self.grows_in_place = target.numbers, target.capacity, target.grows_in_place
        self.lookups, self.blank = Lookups(), target.blank
        self.masks = [drafter.shape.mask] * (drafter.shape.block - 1)
        self.readable = max(target.readable, drafter.shape.mask + 1)  # a block's ids: a token, then masks
        self.graphs = Graphs.of(target)
        if self.graphs is None:
            CapturedBlockSession(self).look_up(USUAL_COUNTS)


def captured(drafter: BlockDrafter, target: object) -> CapturedBlock | None:
    """`drafter` in the engine of `target`; None where that captures no steps, or, with a warning, cannot capture it."""
    if not isinstance(target, StaticModel):
        return None
    try:
        return _checked(drafter, target)
    except Exception as error:  # whatever the layers' modules raise when they are captured
        kind = drafter.shape.kind
        warnings.warn(f"{kind}'s layers cannot be captured: {first_line(error)}; they run eagerly", stacklevel=2)
        return None


def _checked(drafter: BlockDrafter, target: StaticModel, again: bool = True) -> CapturedBlock:
    """The captured layers, their logits compared with the modules'. Raises RuntimeError where they differ."""
    model = CapturedBlock(drafter, target)
    difference = largest_difference(
        _probed(drafter, CapturedBlockSession(model)), _probed(drafter, BlockCache(drafter))
    )
    if difference <= ROUNDING[drafter.fc.weight.dtype]:
        return model
    if again and model.program.cached:  # captures that are made now may be right
        for file in model.program.cached:
            forget(file)
        return _checked(drafter, target, again=False)
    raise RuntimeError(f"a captured block differs from the layers' own by {difference:.2g} of the largest logit")


@torch.inference_mode()
def _probed(drafter: BlockDrafter, cache: "BlockCache | CapturedBlockSession") -> list[Tensor]:
    """Logits of two blocks, after several tokens of the context and after one more."""
    noise = torch.randn(PROBED, drafter.fc.weight.shape[1], generator=torch.Generator().manual_seed(0))
    found, most = list[Tensor](), drafter.shape.drafted
    for part_LF in noise.to(drafter.device, drafter.fc.weight.dtype).split([PROBED - 1, 1]):
        cache.read(part_LF)
        found.append(cache.block(drafter.rows // 2, most).logits_LV.float())
    return found


class CapturedBlockSession(ReplayedSession, NativeSession):
    """The captured context of one text; see `BlockCache`."""

    model: CapturedBlock  # type: ignore[assignment]  # as much of a CapturedModel as a session of blocks uses
    reuses_calls = False  # they read this session's own states

    @torch.inference_mode()
    def __init__(self, model: CapturedBlock) -> None:
        self._begin(model)  # type: ignore[arg-type]
        self._sources, self._source_length_1 = 1, torch.ones(1, dtype=torch.long, device=model.device)
        self._states: dict[int, Tensor] = {}  # what the context's step reads of so many tokens, always at one address
        self.reserve(1)

    def _layout(self, count: int) -> Layout:
        """The newest `count` entries, which attend to each other, too."""
        layout = super()._layout(count)
        visible_1LC = (layout.positions_BC < self.length + count).unsqueeze(1).expand(-1, count, -1)
        return Layout(layout.slots_BL, layout.positions_BC, visible_1LC.contiguous())

    def read(self, features_LF: Tensor) -> None:
        for part_LF in features_LF.split(READ_AT_ONCE):
            self._read_part(part_LF)

    @torch.inference_mode()
    def _read_part(self, features_LF: Tensor) -> None:
        count, program = len(features_LF), self.model.program
        self._make_room(self.length + count)
        step = program.context_one if count == 1 else program.context
        ids_L = None if self.model.graphs is None else features_LF.new_zeros(count, dtype=torch.long)  # not read
        if ids_L is None or self._replayed(step, ids_L, self._buffers, features_LF) is None:
            states_1LF = self._states.get(count)
            if states_1LF is None:
                states_1LF = self._states[count] = torch.empty_like(features_LF).unsqueeze(0)
            states_1LF[0] = features_LF
            self._run_step(step, [0] * count, states_1LF)
        self.length += count

    @torch.inference_mode()
    def block(self, token: int, most: int) -> Prediction:
        drafter, step, first = self.model.drafter, self.model.program.block, self.model.drafter.shape.first
        self._make_room(self.length + drafter.shape.block)
        found_LV = None
        if self.model.graphs is not None:
            ids_L = torch.full((drafter.shape.block,), drafter.shape.mask, device=self.model.device)
            ids_L[:1].fill_(token)  # a fill takes its number along: no copy from the host to wait for
            found_LV = self._replayed(step, ids_L, self._buffers)
        if found_LV is None:
            found_LV = self._run_step(step, [token, *self.model.masks])
        found_LV = found_LV[first : first + most]
        return Prediction(found_LV[:, drafter.rows :], found_LV[:, : drafter.rows])

    def _run_step(self, step: Step, tokens: Sequence[int], *states: Tensor) -> Tensor:
        own = self._buffers
        self._buffers = [*own, *states]
        try:
            if step is self.model.program.block or not isinstance(step.run, WholeStep):
                return self._step(step, tokens, len(tokens))
            call, results = self._call(step, len(tokens)), step.run.run.results(1, len(tokens))
            call.run(results)  # which reads no tokens
            return results[0][0]
        finally:
            self._buffers = own

    def rollback(self, length: int) -> None:
        self.length = min(self.length, max(0, length))

    @torch.inference_mode()
    def look_up(self, counts: Sequence[int]) -> None:
        """Compute the positions of the first buffers once, so that no later step pays."""
        program, drafter, end = self.model.program, self.model.drafter, self._capacity
        states = drafter.fc.weight.new_zeros(1, 1, drafter.fc.weight.shape[1])
        steps = [(program.context_one if count == 1 else program.context, count) for count in counts]
        for step, count in [*steps, (program.block, drafter.shape.block)]:
            more = [] if step is program.block else [states.expand(1, count, -1)]
            self._buffers, ids_1L = [*self._held["self"].layers, *more], self._ids([0] * count, count)
            fixed = self._of_source(step, ids_1L, count)
            for self.length in range(end - count + 1):
                self._looked_up((id(step), count), count, partial(self._placed, step, ids_1L, count, fixed))
        self.length = 0
        self._collect()
