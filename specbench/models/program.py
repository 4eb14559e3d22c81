"""A model's decoding step and its reading of a source, captured from the `transformers` module and ready to run.

Knows the two families and how each is called; knows no sessions. The caches are buffers handed in by the caller.

Shapes: L new tokens, C positions of the self-attention buffers, S of the cross-attention ones, V logits.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from transformers import EncoderDecoderCache

from specbench.models.graph import (
    Layouts,
    Lowering,
    capture,
    for_last_row,
    for_one_token,
    for_outputs,
    hoist,
    lower,
    markers,
    simplify,
)
from specbench.models.graph.capture import example_sizes

SIZES_KEPT = 128  # sources of so many lengths have their position biases kept

# The inputs of a step, in order; the buffers follow.
IDS, LENGTH, SOURCE_LENGTH = range(3)


@contextmanager
def _without_collecting() -> Iterator[None]:
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
    """One decoding step in three parts, each taking (ids_1L, length, source_length, *buffers) and what those before it
    gave. `of_source` and `of_length` depend on nothing but source_length, length and sizes, so what they give can be
    kept; `run` gives logits [L, V].
    """

    of_source: Callable[..., tuple[Tensor, ...]]
    of_length: Callable[..., tuple[Tensor, ...]]
    run: Callable[..., Tensor]

    def whole(self, *inputs: Tensor) -> Tensor:
        """All three."""
        of_source = self.of_source(*inputs)
        return self.run(*inputs, *of_source, *self.of_length(*inputs, *of_source))


@dataclass(frozen=True)
class Program:
    """A captured model. `one` steps over one token, `several` over any number from 2; `last` gives the last token's
    logits only. `encode` maps source ids [1, S] to cross-attention keys and values, layer by layer."""

    shapes: dict[str, list[tuple[int, int]]]  # (heads, channels) of each buffer for 'self' and 'cross' attention
    cache_dtype: torch.dtype
    one: Step
    several: Step
    last: Step
    encode: Callable[[Tensor], list[Tensor]] | None

    @staticmethod
    @_without_collecting()
    def of(
        network: Any, cache_dtype: torch.dtype, lowering: Lowering = lower, layouts: Layouts | None = None
    ) -> "Program":
        """`network` captured, its steps made ready by `lowering`. Raises whatever its code raises where it cannot.
        `layouts` are those of a program that shares weights with this one."""
        layouts = layouts or Layouts()
        with markers.marked(network), torch.no_grad():
            self_states, cross_states = _what_it_caches(network)
            shapes = {
                "self": [(t.shape[1], t.shape[3]) for t in self_states],
                "cross": [(t.shape[1], t.shape[3]) for t in cross_states],
            }
            taken = {size for tensor in (*network.parameters(), *self_states, *cross_states) for size in tensor.shape}
            tokens, capacity, positions, source = example_sizes(taken, 4)
            buffers = [
                torch.zeros(1, heads, places, channels, dtype=cache_dtype, device=network.device)
                for kind, places in (("self", capacity), ("cross", positions))
                for heads, channels in shapes[kind]
            ]
            ids = torch.zeros(1, tokens, dtype=torch.long, device=network.device)
            length = torch.tensor(3, device=network.device)
            inputs = [ids, length, length.clone(), *buffers]
            if cross_states:
                inputs.append(ids.new_zeros(1, source))
            captured = simplify(capture(_decoding(network, len(self_states)), inputs))
            graph = for_outputs(captured, 0, range(3 + len(buffers)))
            encode = for_outputs(captured, slice(1, None), [len(inputs) - 1]) if cross_states else None
        return Program(
            shapes,
            cache_dtype,
            one=_cut(for_one_token(graph), lambda module: lowering(module, layouts, True)),
            several=_cut(graph, lambda module: lowering(module, layouts, False)),
            last=_cut(for_last_row(graph), lambda module: lower(module, layouts, False)),  # run once a prompt
            encode=None if encode is None else _encode(encode, layouts),
        )


def _what_it_caches(network: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of one token, from a look at the model at work."""
    one = torch.zeros(1, 1, dtype=torch.long, device=network.device)
    cache = markers.recording()
    if not network.config.is_encoder_decoder:
        network(input_ids=one, past_key_values=cache, use_cache=True)
        return markers.recorded(cache), []
    both = EncoderDecoderCache(cache, markers.recording())
    network(input_ids=one, decoder_input_ids=one, past_key_values=both, use_cache=True)
    return markers.recorded(cache), markers.recorded(both.cross_attention_cache)


def _decoding(network: Any, of_self: int) -> Callable[..., tuple[Tensor, ...]]:
    """The step, and in the same run of the decoder what its cross-attention caches of a source, as a function of
    tensors alone: (logits, keys and values layer by layer)."""

    def decoder_only(ids: Tensor, length: Tensor, _: Tensor, *buffers: Tensor) -> tuple[Tensor, ...]:
        cache = markers.over(buffers, length)
        return (network(input_ids=ids, past_key_values=cache, use_cache=True).logits[0],)

    def encoder_decoder(
        ids: Tensor, length: Tensor, source_length: Tensor, *buffers_and_source: Tensor
    ) -> tuple[Tensor, ...]:
        *buffers, source = buffers_and_source
        cross = markers.replaced(buffers[of_self:])  # the step reads buffers, whatever the source
        positions = buffers[of_self].shape[2]
        read = {
            "encoder_outputs": network.get_encoder()(input_ids=source),
            "attention_mask": (torch.arange(positions, device=ids.device) < source_length).view(1, 1, 1, -1),
            "past_key_values": EncoderDecoderCache(markers.over(buffers[:of_self], length), cross),
        }
        logits: Tensor = network(decoder_input_ids=ids, use_cache=True, **read).logits[0]
        return logits, *markers.recorded(cross)

    return encoder_decoder if network.config.is_encoder_decoder else decoder_only


def _encode(graph: GraphModule, layouts: Layouts) -> Callable[[Tensor], list[Tensor]]:
    """`graph`, from source ids to cross-attention keys and values, made ready."""
    parts = hoist(graph, [], with_constants=True)
    run = lower(parts.rest, layouts, one_token=False)
    of_size: dict[int, tuple[Tensor, ...]] = {}  # relative position biases

    def encoded(source: Tensor) -> list[Tensor]:
        if source.shape[1] not in of_size:
            if len(of_size) >= SIZES_KEPT:
                of_size.clear()
            of_size[source.shape[1]] = parts.apart.forward(source)
        states: list[Tensor] = run(source, *of_size[source.shape[1]])
        return states

    return encoded


def _cut(graph: Any, lowered: Callable[[Any], Callable[..., Tensor]]) -> Step:
    source = hoist(graph, [SOURCE_LENGTH], with_constants=False)
    length = hoist(source.rest, [LENGTH], with_constants=True)
    # hoist() adds inputs in the order: the source's results, then the length's.
    return Step(source.apart.forward, length.apart.forward, lowered(length.rest))
