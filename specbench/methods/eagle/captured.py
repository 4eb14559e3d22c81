"""EAGLE's layer as captured steps, beside a target of the same engine.

Embedding, linear layer, decoder layer and head are one program.

Shapes: L new entries, C slots, S slots of the source, D width, F numbers of a target's feature, V logits.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from specbench.engine.buffers import CACHED_OF_TREES, BufferPool, TensorCache
from specbench.engine.capture import marking
from specbench.engine.capture.cache import cached_capture, forget
from specbench.engine.capture.lower import Lowering, PackedWeights
from specbench.engine.capture.nodes import capture, example_sizes
from specbench.engine.capture.program import ROUNDING, Step, largest_difference, make_step, without_collecting
from specbench.engine.capture.rewrite import for_one_token, hoist, with_merged_weights, without_repetition
from specbench.engine.capture.static import USUAL_COUNTS, StaticModel
from specbench.engine.capture.static_sessions import StaticSession, tokens_at_once
from specbench.engine.cuda.graphs import MOST_TOKENS, CudaGraphModel
from specbench.engine.layout import Layout, chain
from specbench.engine.session import Tokens
from specbench.errors import first_line
from specbench.methods.decoder_layer import Attention, Source, mask_bias
from specbench.methods.eagle.network import Eagle, EagleCache, Prediction, entry_bias
from specbench.theory.trees import ROOT

MARKED_ATTENTION: Attention = marking.attend  # an operation that the rewrites find in a captured graph


class EagleProgram:
    """Steps over entries; each takes, after the buffers, the states [1, L, F or D] that the entries join.

    Steps return logits and, in the last D columns, predicted features.

    Attributes:
        read_one: one entry that holds the target's own feature.
        read: several; only the last entry's prediction is returned.
        draft_one: one entry that holds a predicted feature.
        draft: several.
        cached: files that the captures were read from.
        shapes: (heads, channels) of each buffer for 'self' and 'cross' attention.
    """

    @without_collecting()
    def __init__(self, eagle: Eagle, cache_dtype: torch.dtype, lowering: Lowering, weights: PackedWeights) -> None:
        """`eagle`, bound to its target. Raises whatever its modules raise where they cannot be captured."""
        layer, self.cache_dtype, self.cached = eagle.shape.layer, cache_dtype, list[Path]()
        self.shapes = {"self": [(layer.key_heads, layer.head_width)] * 2 * eagle.layers}
        if layer.crosses:
            self.shapes["cross"] = [(layer.heads, layer.head_width)] * 2
        steps = list[Step]()
        for kind in ("read", "draft"):
            graph = _captured(eagle, kind, self.shapes, cache_dtype, self.cached)
            sizes = hoist(with_merged_weights(graph), [], with_constants=True)
            steps.append(make_step(sizes, for_one_token(sizes.rest), lambda module: lowering(module, weights, True)))
            steps.append(make_step(sizes, sizes.rest, lambda module: lowering(module, weights, False)))
        self.read_one, self.read, self.draft_one, self.draft = steps


class _Modules(nn.Module):
    """All modules that a step runs, those of the target too: what the digest of a capture covers."""

    def __init__(self, eagle: Eagle) -> None:
        super().__init__()
        self.device = eagle.fc.weight.device
        for name, module in [*eagle.named_children(), *eagle.borrowed.items()]:
            self.add_module(name, module)
        for name, buffer in eagle.named_buffers(recurse=False):
            self.register_buffer(name, buffer)


def _captured(
    eagle: Eagle, kind: str, shapes: dict[str, list[tuple[int, int]]], cache_dtype: torch.dtype, files: list[Path]
) -> GraphModule:
    """The graph of a step, from the cache if it is there; then its file is added to `files`."""
    modules, shape, dtype = _Modules(eagle), eagle.shape, eagle.fc.weight.dtype
    taken = {size for tensor in modules.parameters() for size in tensor.shape}
    taken |= {number for of_kind in shapes.values() for pair in of_kind for number in pair}
    width = eagle.width_of(kind)
    tokens, capacity, source = example_sizes({*taken, width}, 3)
    device = modules.device
    buffers = [
        torch.zeros(1, heads, slots, channels, dtype=cache_dtype, device=device)
        for of, slots in (("self", capacity), ("cross", source))
        for heads, channels in shapes.get(of, [])
    ]
    ids = torch.zeros(1, tokens, dtype=torch.long, device=device)
    layout = chain(0, tokens, torch.arange(capacity, device=device).unsqueeze(0))
    states = torch.zeros(1, tokens, width, dtype=dtype, device=device)
    inputs = [ids, *(tensor.clone() for tensor in layout.tensors), ids.new_ones(1), *buffers, states]

    def make() -> tuple[GraphModule, bool]:
        return without_repetition(capture(_step(eagle, kind), inputs)), False

    found = cached_capture(modules, [kind, str(cache_dtype), asdict(shape)], make)
    if found.file is not None:
        files.append(found.file)
    return found.graph


def _step(eagle: Eagle, kind: str) -> Callable[..., Tensor]:
    """A step as a function of tensors alone."""
    shape = eagle.shape.layer

    def step(
        ids: Tensor, slots: Tensor, positions: Tensor, visible: Tensor, source_length: Tensor, *others: Tensor
    ) -> Tensor:
        *buffers, states = others
        own, of_source = buffers[: 2 * eagle.layers], buffers[2 * eagle.layers :]
        layout = Layout(slots, positions, visible)
        at, placed = slots.flatten(), layout.new_positions_BL
        near: Any = eagle.layer.bias_by_distance(torch.arange(visible.shape[-1], device=visible.device))
        bias = entry_bias(layout, near, own[0].dtype)

        def attend(keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            marking.write(keys, at, key)
            marking.write(values, at, value)
            return MARKED_ATTENTION(query, keys, values, bias, shape.scale)

        source = None
        if of_source:
            numbers = torch.arange(of_source[0].shape[2], device=ids.device)
            read = (numbers < source_length.unsqueeze(-1))[:, None, None, :]
            source = Source(of_source[0], of_source[1], mask_bias(read, own[0].dtype), MARKED_ATTENTION)
        attends = [partial(attend, keys, values) for keys, values in zip(own[::2], own[1::2], strict=True)]
        return eagle.step(kind, ids, states, placed, attends, source)

    return step


class Graphs:
    """Graphs of a drafter's steps, which its target captures between prompts, and the states that they read."""

    def __init__(self, target: CudaGraphModel) -> None:
        self.target = target
        self._states: dict[tuple[int, int], Tensor] = {}

    @classmethod
    def of(cls, target: StaticModel) -> "Graphs | None":
        """None where the target replays no graphs."""
        return cls(target) if isinstance(target, CudaGraphModel) else None

    def states(self, step: Step, states_LD: Tensor, rows: int) -> Tensor:
        """`states_LD` [1, `rows`, D] at the address that a graph of `step` reads; the last fills the missing rows."""
        key = id(step), rows
        if key not in self._states:
            self._states[key] = states_LD.new_zeros(1, rows, states_LD.shape[1])
        held, count = self._states[key], len(states_LD)
        held[0, :count] = states_LD
        held[0, count:] = states_LD[-1]
        return held


class ReplayedSession(StaticSession):
    """A session of a drafter's captured steps, whose `model.graphs` may have graphs of them."""

    model: Any

    def _replayed(
        self, step: Step, tokens: Tokens, buffers: Sequence[Tensor], states_LD: Tensor | None = None
    ) -> Tensor | None:
        """What a graph of `step` returns, which reads `buffers` and then the states; None where there is none (yet)."""
        graphs: Graphs | None = self.model.graphs
        count = len(tokens)
        if graphs is None or (filled := graphs.target.filled(count)) > MOST_TOKENS:
            return None
        states = [] if states_LD is None else [graphs.states(step, states_LD, filled)]
        graph = graphs.target.graph(step, filled, [*buffers, *states])
        if graph is None:
            return None
        placed = self._looked_up((0, filled), count, lambda: self._layout(count).filled(filled).tensors)
        return graph.run(self._ids(tokens, filled), Layout(*placed), self._sources)[:count]


PROBED_ENTRIES = 4  # entries with which a captured step is compared


class CapturedEagle:
    """`eagle` in the engine of `target`: its steps, and what its sessions share."""

    longest = None  # learned positions end at their last row
    invariant = False
    most_rows = None
    rows = 1
    state_width = 0  # its states are its own

    def __init__(self, eagle: Eagle, target: StaticModel) -> None:
        """Raises whatever the layer's modules raise where they cannot be captured."""
        self.packed = PackedWeights() if target.invariant else target.packed
        self.program = EagleProgram(eagle, target.program.cache_dtype, target.lowering, self.packed)
        self.vocabulary_size = eagle.vocabulary_size
        self.device = target.device
        self.pool = BufferPool(self.program.shapes, self.program.cache_dtype, self.device)
        self.sources, self.positions, self.tree_positions = TensorCache(), TensorCache(), TensorCache(CACHED_OF_TREES)
        self.numbers, self.capacity, self.source_slots = target.numbers, target.capacity, target.source_slots
        self.ids, self.grows_in_place = target.ids, target.grows_in_place
        self.graphs = Graphs.of(target)
        if self.graphs is None:
            CapturedEagleSession(self, None).look_up(USUAL_COUNTS)


# Logits of a model's captured steps, and of its modules for the same entries.
Probe = Callable[[CapturedEagle], tuple[list[Tensor], list[Tensor]]]


def captured(eagle: Eagle, target: object, probe: Probe | None = None) -> CapturedEagle | None:
    """`eagle` in the engine of `target`; None where that captures no steps, or, with a warning, cannot capture it."""
    if not isinstance(target, StaticModel):
        return None
    try:
        return _checked(eagle, target, probe or partial(_probed, eagle))
    except Exception as error:  # whatever the layer's modules raise when they are captured
        warnings.warn(
            f"EAGLE's layer cannot be captured: {first_line(error)}; it runs eagerly, which is slower", stacklevel=2
        )
        return None


def _checked(eagle: Eagle, target: StaticModel, probe: Probe, again: bool = True) -> CapturedEagle:
    """The captured layer, its logits compared with the module's. Raises RuntimeError where they differ."""
    model = CapturedEagle(eagle, target)
    difference = largest_difference(*probe(model))
    if difference <= ROUNDING[eagle.fc.weight.dtype]:
        return model
    if again and model.program.cached:  # captures that are made now may be right
        for file in model.program.cached:
            forget(file)
        return _checked(eagle, target, probe, again=False)
    raise RuntimeError(f"the compiled step differs from the layer's own by {difference:.2g} of the largest logit")


def _probed(eagle: Eagle, model: CapturedEagle) -> tuple[list[Tensor], list[Tensor]]:
    heads, channels = model.program.shapes.get("cross", [(0, 0)])[0]
    keys = noise(1, heads, PROBED_ENTRIES, channels).to(model.device, model.program.cache_dtype)
    ours = CapturedEagleSession(model, (keys, keys.flip(2)) if heads else None)
    own = EagleCache(eagle, lambda: Source(keys, keys.flip(2)) if heads else None)
    return _probe_logits(eagle, ours), _probe_logits(eagle, own)


@torch.inference_mode()
def _probe_logits(eagle: Eagle, entries: "EagleCache | CapturedEagleSession") -> list[Tensor]:
    """Logits [rows, V] of five calls that use each captured step.

    They read several entries, one entry, a drafted node, two siblings, and a node below each sibling.
    """
    device, dtype = eagle.fc.weight.device, eagle.fc.weight.dtype
    features_LF = noise(PROBED_ENTRIES, eagle.shape.feature_width).to(device, dtype)
    tokens = range(eagle.vocabulary_size // 2, eagle.vocabulary_size // 2 + PROBED_ENTRIES + 1)
    several = entries.read(features_LF[:-1], tokens[: PROBED_ENTRIES - 1])
    one = entries.read(features_LF[-1:], tokens[PROBED_ENTRIES - 1 : PROBED_ENTRIES])
    node = entries.draft(one.states_LD, tokens[PROBED_ENTRIES])
    entries.rollback(PROBED_ENTRIES)
    siblings = entries.draft_nodes(one.states_LD.expand(2, -1), tokens[:2], [ROOT, ROOT])
    below = entries.draft_nodes(siblings.states_LD, tokens[2:4], [1, 0])
    return comparable(eagle, [each.logits_LV for each in (several, one, node, siblings, below)])


def comparable(eagle: Eagle, rows: Sequence[Tensor]) -> list[Tensor]:
    """Logits of the target's tokens, 0 for those that are never drafted."""
    logits = [each[:, : eagle.vocabulary_size].float() for each in rows]
    return [each.masked_fill(each == -torch.inf, 0.0) for each in logits]


def noise(*shape: int) -> Tensor:
    """Numbers to probe with, the same at each call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class CapturedEagleSession(ReplayedSession):
    """Captured entries of one text; see `EagleCache`."""

    model: CapturedEagle

    @torch.inference_mode()
    def __init__(self, model: CapturedEagle, of_source: tuple[Tensor, Tensor] | None) -> None:
        """`of_source` are the keys and values [1, H, S, E] that cross-attention reads."""
        self._begin(model)  # type: ignore[arg-type]
        self._sources = 1 if of_source is None else of_source[0].shape[2]
        self._source_length_1 = torch.tensor([self._sources], device=model.device)
        if "cross" in model.program.shapes:
            self._held["cross"] = model.pool.take("cross", model.source_slots(self._sources))
            for buffer, states in zip(self._held["cross"].layers, of_source or (), strict=False):
                buffer[:, :, : self._sources] = states
        self._states_1LD = torch.empty(1, 0, 0)
        self.reserve(1)

    def _collect(self) -> None:
        super()._collect()
        self._buffers.append(self._states_1LD)

    def read(self, features_LF: Tensor, tokens: Sequence[int]) -> Prediction:
        self.forget()
        self._make_room(self.length + len(tokens))
        program, most = self.model.program, tokens_at_once(self._capacity)
        for first in range(0, len(tokens), most):
            part = tokens[first : first + most]
            step = program.read_one if len(part) == 1 else program.read
            predicted = self._predict(step, features_LF[first : first + most], part)
            self.length += len(part)
        return predicted

    def draft(self, states_1D: Tensor, token: int) -> Prediction:
        return self.draft_nodes(states_1D, [token], [len(self._tree) - 1])

    def draft_nodes(self, states_LD: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> Prediction:
        self._tree.grow(tokens, parents)
        self._make_room(self.length + len(self._tree))
        program = self.model.program
        return self._predict(program.draft_one if len(tokens) == 1 else program.draft, states_LD, tokens)

    def forget(self) -> None:
        """Drop all drafted entries."""
        self._tree.close()

    def rollback(self, length: int) -> None:
        self.forget()
        self.length = min(self.length, max(0, length))

    def _predict(self, step: Step, states_LD: Tensor, tokens: Tokens) -> Prediction:
        found_LV = self._replayed(step, tokens, self._buffers[:-1], states_LD)
        if found_LV is None:
            self._buffers[-1] = states_LD.unsqueeze(0)
            found_LV = self._step(step, tokens, len(tokens))
        return Prediction(found_LV[:, self.model.vocabulary_size :], found_LV)

    @torch.inference_mode()
    def look_up(self, counts: Sequence[int]) -> None:
        """Compute the positions of the first buffers once, so that no later step pays."""
        program, end = self.model.program, self._capacity
        steps = [(program.read_one, program.read), (program.draft_one, program.draft)]
        for (one, several), count in product(steps, counts):
            step = one if count == 1 else several
            ids_1L = self._ids([0] * count, count)
            fixed = self._of_source(step, ids_1L, count)
            for self.length in range(end - count + 1):
                self._looked_up((id(step), count), count, partial(self._placed, step, ids_1L, count, fixed))
        self.length = 0
