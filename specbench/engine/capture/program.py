"""A model's decoding step and its reading of a source, captured from the `transformers` module and ready to run.

Supports both families; independent of sessions. The caches are buffers handed in by the caller.

Shapes: B rows, L new tokens, C slots of the self-attention buffers, S of the cross-attention buffers, V logits.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from transformers import EncoderDecoderCache

from specbench.engine.buffers import TensorCache
from specbench.engine.capture import markers
from specbench.engine.capture.cache import cached_capture
from specbench.engine.capture.capture import capture, example_sizes
from specbench.engine.capture.invariant import lower_invariant, with_path_order
from specbench.engine.capture.lower import Lowering, PackedWeights, direct, lower, with_folded_weights
from specbench.engine.capture.nodes import compiled_to_python
from specbench.engine.capture.rewrite import with_merged_weights, without_repetition
from specbench.engine.capture.specialise import Hoisted, for_last_row, for_one_token, for_outputs, hoist
from specbench.engine.eager.placement import Placement
from specbench.engine.layout import Layout, chain

# The inputs of a step, in order; the buffers follow.
IDS, SLOTS, POSITIONS, VISIBLE, SOURCE_LENGTH = range(5)


@contextmanager
def without_collecting() -> Iterator[None]:
    """Capturing makes so many objects that Python would look through all that torch holds for what could be freed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class Step:
    """One decoding step in four parts.

    Each takes (ids_BL, slots_BL, positions_BC, visible_BLC, source_length_B, *buffers) and the results of the parts
    before it. The first three depend only on sizes and
    weights, the source's length, and the layout, so that their results can be cached; `run` returns logits [B, L, V].
    """

    of_sizes: Callable[..., tuple[Tensor, ...]]
    of_source: Callable[..., tuple[Tensor, ...]]
    of_layout: Callable[..., tuple[Tensor, ...]]
    run: Callable[..., Tensor]

    def after_sizes(self, of_sizes: tuple[Tensor, ...], *inputs: Tensor) -> Tensor:
        """Logits [B, L, V] from the results of the first part: the other three parts in turn."""
        return self.placed((*of_sizes, *self.of_source(*inputs, *of_sizes)), *inputs)

    def placed(self, fixed: tuple[Tensor, ...], *inputs: Tensor) -> Tensor:
        """Logits [B, L, V] from `fixed`, the results of the first two parts: the last two parts in turn."""
        return self.run(*inputs, *fixed, *self.of_layout(*inputs, *fixed))


@dataclass(frozen=True)
class Program:
    """A captured model.

    Attributes:
        one: steps over one token.
        several: steps over any number from 2.
        last: returns the last token's logits only.
        tree: of an invariant program, steps over two nodes of a tree or more.
        encode: reads a source.
    """

    shapes: dict[str, list[tuple[int, int]]]  # (heads, channels) of each buffer for 'self' and 'cross' attention
    cache_dtype: torch.dtype
    placement: Placement  # how the captured network took positions
    cached: Path | None  # the file that the capture was read from
    one: Step
    several: Step
    last: Step
    tree: Step | None
    encode: "Encoding | None"

    @staticmethod
    @without_collecting()
    def of(
        network: Any,
        cache_dtype: torch.dtype,
        lowering: Lowering = lower,
        weights: PackedWeights | None = None,
        one_row: bool = True,
        of_prompt: Lowering = lower,
    ) -> "Program":
        """`network` captured, its steps made ready by `lowering`. Raises whatever its code raises where it cannot.

        `of_prompt` makes the reading of a source and of a prompt ready. `weights` are those of a program that shares
        weights with this one. Steps take one row, or, without `one_row`, any number of rows from two.
        """
        weights = weights or PackedWeights()
        with markers.marked(network), torch.no_grad():
            self_states, cross_states = what_it_caches(network)
            shapes = {
                "self": [(t.shape[1], t.shape[3]) for t in self_states],
                "cross": [(t.shape[1], t.shape[3]) for t in cross_states],
            }
            taken = {size for tensor in (*network.parameters(), *self_states, *cross_states) for size in tensor.shape}
            tokens, capacity, cross_capacity, source, rows, sources = example_sizes(taken, 6)
            rows, sources = (1, 1) if one_row else (rows, sources)
            buffers = [
                torch.zeros(rows, heads, slots, channels, dtype=cache_dtype, device=network.device)
                for kind, slots in (("self", capacity), ("cross", cross_capacity))
                for heads, channels in shapes[kind]
            ]
            ids = torch.zeros(rows, tokens, dtype=torch.long, device=network.device)
            layout = chain(0, tokens, torch.arange(capacity, device=network.device).unsqueeze(0))
            placed = [tensor.expand(rows, *tensor.shape[1:]).clone() for tensor in layout.tensors]
            inputs = [ids, *placed, ids.new_ones(rows), *buffers]
            if cross_states:
                inputs.append(ids.new_zeros(sources, source))
            placement = Placement(network)

            def make() -> tuple[GraphModule, bool]:
                graph = capture(_decoding(network, placement, len(self_states)), inputs)
                return without_repetition(graph), placement.masked

            found = cached_capture(network, [str(cache_dtype), one_row], make)
            placement.has_followed(found.masked)
            captured = with_folded_weights(with_merged_weights(found.graph), weights)
            graph = for_outputs(captured, 0, range(SOURCE_LENGTH + 1 + len(buffers)))
            sizes = hoist(graph, [], with_constants=True)
            encode = for_outputs(captured, slice(1, None), [len(inputs) - 1]) if cross_states else None
            along_paths = None
            if lowering is lower_invariant:
                own = range(SOURCE_LENGTH + 1, SOURCE_LENGTH + 1 + len(self_states))
                along_paths = with_path_order(sizes.rest, POSITIONS, VISIBLE, own)
        return Program(
            shapes,
            cache_dtype,
            placement,
            found.file,
            one=make_step(sizes, for_one_token(sizes.rest), lambda module: lowering(module, weights, True)),
            several=make_step(sizes, sizes.rest, lambda module: lowering(module, weights, False)),
            last=make_step(sizes, for_last_row(sizes.rest), lambda module: of_prompt(module, weights, False)),
            tree=None
            if along_paths is None
            else make_step(sizes, along_paths, lambda module: lowering(module, weights, False)),
            encode=None if encode is None else Encoding(encode, weights, of_prompt),
        )


def what_it_caches(network: Any, source: Tensor | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of one token for self-attention and of `source` [1, S] (unset: one token) for cross-attention.

    They are recorded in a run of the model.
    """
    one = torch.zeros(1, 1, dtype=torch.long, device=network.device)
    cache = markers.recording()
    if not network.config.is_encoder_decoder:
        network(input_ids=one, past_key_values=cache, use_cache=True)
        return markers.recorded(cache), []
    both = EncoderDecoderCache(cache, markers.recording())
    read = one if source is None else source
    network(input_ids=read, decoder_input_ids=one, past_key_values=both, use_cache=True)
    return markers.recorded(cache), markers.recorded(both.cross_attention_cache)


def _decoding(network: Any, placement: Placement, of_self: int) -> Callable[..., tuple[Tensor, ...]]:
    """The step and, in the same run, the cross-attention keys and values, as a function of tensors alone.

    It returns (logits, keys and values layer by layer).
    """

    def decoder_only(
        ids: Tensor, slots: Tensor, positions: Tensor, visible: Tensor, _: Tensor, *buffers: Tensor
    ) -> tuple[Tensor, ...]:
        layout = Layout(slots, positions, visible)
        cache = markers.cache_over(buffers, slots, layout.new_positions_BL[0, 0])
        with placement.applying(layout) as options:
            return (network(input_ids=ids, past_key_values=cache, use_cache=True, **options).logits,)

    def encoder_decoder(
        ids: Tensor, slots: Tensor, positions: Tensor, visible: Tensor, source_length: Tensor, *others: Tensor
    ) -> tuple[Tensor, ...]:
        *buffers, source = others
        layout = Layout(slots, positions, visible)
        cross = markers.replaced(buffers[of_self:])  # the step reads buffers, whatever the source
        cross_slots = torch.arange(buffers[of_self].shape[2], device=ids.device)
        options = {
            "encoder_outputs": network.get_encoder()(input_ids=source),
            "attention_mask": (cross_slots < source_length.unsqueeze(-1))[:, None, None, :],
            "past_key_values": EncoderDecoderCache(
                markers.cache_over(buffers[:of_self], slots, layout.new_positions_BL[0, 0]), cross
            ),
        }
        with placement.applying(layout) as placed:
            logits: Tensor = network(decoder_input_ids=ids, use_cache=True, **options, **placed).logits
        return logits, *markers.recorded(cross)

    return encoder_decoder if network.config.is_encoder_decoder else decoder_only


class Encoding:
    """From source ids [1, S] to cross-attention keys and values, layer by layer: a captured graph, made ready."""

    def __init__(self, graph: GraphModule, weights: PackedWeights, lowering: Lowering) -> None:
        parts = hoist(graph, [], with_constants=True)
        self._biases = compiled_to_python(parts.hoisted)
        self._run = lowering(parts.rest, weights, False)
        self.of_size = TensorCache()  # relative position biases

    def __call__(self, source: Tensor) -> list[Tensor]:
        biases = self.of_size.get(tuple(source.shape))
        if biases is None:
            biases = self.of_size.put(tuple(source.shape), self._biases(source))
        states: list[Tensor] = self._run(source, *biases)
        return states


def make_step(sizes: Hoisted, module: GraphModule, lowered: Callable[[Any], Callable[..., Tensor]]) -> Step:
    """The four parts of a step.

    Args:
        sizes: the first part, and the graph without it.
        module: `sizes.rest`, or a special case of it (for one token, for the last row).
        lowered: makes the last part ready to run.
    """
    # hoist() appends inputs: the results of sizes, which the next two may read, of the source, of the layout.
    placeholders = sum(node.op == "placeholder" for node in module.graph.nodes)
    of_sizes = range(placeholders - sizes.count, placeholders)
    source = hoist(module, [SOURCE_LENGTH, *of_sizes], with_constants=False)
    layout = hoist(source.rest, [SLOTS, POSITIONS, VISIBLE, *of_sizes], with_constants=False)
    return Step(compiled_to_python(sizes.hoisted), direct(source.hoisted), direct(layout.hoisted), lowered(layout.rest))
