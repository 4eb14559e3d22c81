"""A step of EAGLE's layer, captured: embedding, linear layer, decoder layer and head are one program.

Shapes: L new entries, C slots, S slots of the source, D width, F numbers of a target's feature, V logits.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from specbench.models.capture_cache import cached_capture
from specbench.models.eagle import Eagle
from specbench.models.eagle_layer import Source
from specbench.models.graph import (
    Lowering,
    PackedWeights,
    capture,
    for_one_token,
    hoist,
    markers,
    with_merged_weights,
    without_repetition,
)
from specbench.models.graph.capture import example_sizes
from specbench.models.layout import Layout, chain
from specbench.models.program import Step, cut, without_collecting


@dataclass(frozen=True)
class EagleProgram:
    """Steps over entries; each takes, after the buffers, the states [1, L, F or D] that the entries join.

    Steps return logits and, in the last D columns, predicted features.

    Attributes:
        read_one: one entry that holds the target's own feature.
        read: several; only the last entry's prediction is returned.
        draft_one: one entry that holds a predicted feature.
        draft: several.
        cached: files that the captures were read from.
    """

    shapes: dict[str, list[tuple[int, int]]]  # (heads, channels) of each buffer for 'self' and 'cross' attention
    cache_dtype: torch.dtype
    read_one: Step
    read: Step
    draft_one: Step
    draft: Step
    cached: list[Path]

    @staticmethod
    @without_collecting()
    def of(eagle: Eagle, cache_dtype: torch.dtype, lowering: Lowering, weights: PackedWeights) -> "EagleProgram":
        """`eagle`, bound to its target. Raises whatever its modules raise where they cannot be captured."""
        layer, files = eagle.shape.layer, list[Path]()
        shapes = {"self": [(layer.key_heads, layer.head_width)] * 2}
        if layer.crosses:
            shapes["cross"] = [(layer.heads, layer.head_width)] * 2
        steps = list[Step]()
        for kind in ("read", "draft"):
            graph = _captured(eagle, kind, shapes, cache_dtype, files)
            sizes = hoist(with_merged_weights(graph), [], with_constants=True)
            steps.append(cut(sizes, for_one_token(sizes.rest), lambda module: lowering(module, weights, True)))
            steps.append(cut(sizes, sizes.rest, lambda module: lowering(module, weights, False)))
        read_one, read, draft_one, draft = steps
        return EagleProgram(shapes, cache_dtype, read_one, read, draft_one, draft, files)


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
    width = shape.layer.width if kind == "draft" else shape.feature_width
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
        keys, values, *of_source, states = others
        layout = Layout(slots, positions, visible)
        at, placed = slots.flatten(), layout.new_positions_BL
        bias = _bias(eagle, layout, keys.dtype)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            markers.write(keys, at, key)
            markers.write(values, at, value)
            return _marked(query, keys, values, bias, shape.scale)

        source = None
        if of_source:
            numbers = torch.arange(of_source[0].shape[2], device=ids.device)
            read = (numbers < source_length.unsqueeze(-1))[:, None, None, :]
            source = Source(of_source[0], of_source[1], _hidden(read, keys.dtype), _marked)
        fused = eagle.fuse(states) if kind == "read" else states
        predicted = eagle(fused, eagle.embed(ids, placed + 1), placed, attend, source)
        if kind == "read":
            predicted = predicted[:, -1:]
        return torch.cat([eagle.logits(predicted), predicted], -1)

    return step


def _marked(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    mixed: Tensor = markers.attend(query, keys, values, bias, scale)
    return mixed


def _hidden(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: the lowest number where nothing may be read."""
    none = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, none, torch.finfo(dtype).min)


def _bias(eagle: Eagle, layout: Layout, dtype: torch.dtype) -> Tensor:
    """[1, 1 or H, L, C] in the cache's dtype: of distances, and what is hidden."""
    visible = layout.visible_BLC.unsqueeze(1)
    slots = torch.arange(layout.positions_BC.shape[1], device=visible.device)
    near: Any = eagle.layer.bias_by_distance(slots)
    if near is None:
        return _hidden(visible, dtype)
    distance_LC = layout.new_positions_BL[0, :, None] - layout.positions_BC
    by_entry: Tensor = near.to(dtype)[:, distance_LC.clamp(min=0)].unsqueeze(0)
    return torch.where(visible, by_entry, torch.finfo(dtype).min)
