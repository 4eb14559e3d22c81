"""A model's decoding step and its reading of a source, captured from the `transformers` module and ready to run.

Knows the two families and how each is called; knows no sessions. The caches are buffers handed in by the caller.

Shapes: L new tokens, C positions of the self-attention buffers, S of the cross-attention ones, V logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache

from specbench.models.graph import (
    Layouts,
    Lowering,
    capture,
    for_last_row,
    for_one_token,
    hoist,
    lower,
    markers,
    simplify,
)
from specbench.models.graph.capture import example_sizes

SIZES_KEPT = 128  # sources of so many lengths have their position biases kept

# The inputs of a step, in order; the buffers follow.
IDS, LENGTH, SOURCE_LENGTH = range(3)


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
    def of(
        network: Any, cache_dtype: torch.dtype, lowering: Lowering = lower, layouts: Layouts | None = None
    ) -> "Program":
        """`network` captured, its steps made ready by `lowering`. Raises whatever its code raises where it cannot.
        `layouts` are those of a program that shares weights with this one."""
        with markers.marked(network), torch.no_grad():
            self_states, cross_states = _what_it_caches(network)
            shapes = {
                "self": [(t.shape[1], t.shape[3]) for t in self_states],
                "cross": [(t.shape[1], t.shape[3]) for t in cross_states],
            }
            taken = {size for tensor in (*network.parameters(), *self_states, *cross_states) for size in tensor.shape}
            tokens, capacity, source = example_sizes(taken, 3)
            layouts = layouts or Layouts()
            buffers = [
                torch.zeros(1, heads, positions, channels, dtype=cache_dtype, device=network.device)
                for kind, positions in (("self", capacity), ("cross", source))
                for heads, channels in shapes[kind]
            ]
            ids = torch.zeros(1, tokens, dtype=torch.long, device=network.device)
            length = torch.tensor(3, device=network.device)
            inputs = [ids, length, length.clone(), *buffers]
            graph = simplify(capture(_step(network, len(self_states)), inputs))
            encode = _encode(network, layouts, source) if cross_states else None
        return Program(
            shapes,
            cache_dtype,
            one=_cut(for_one_token(graph), lambda module: lowering(module, layouts, True)),
            several=_cut(graph, lambda module: lowering(module, layouts, False)),
            last=_cut(for_last_row(graph), lambda module: lower(module, layouts, False)),  # run once a prompt
            encode=encode,
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


def _step(network: Any, of_self: int) -> Callable[..., Tensor]:
    """The step as a function of tensors alone."""

    def decoder_only(ids: Tensor, length: Tensor, _: Tensor, *buffers: Tensor) -> Tensor:
        cache = markers.over(buffers, length)
        logits: Tensor = network(input_ids=ids, past_key_values=cache, use_cache=True).logits[0]
        return logits

    def encoder_decoder(ids: Tensor, length: Tensor, source_length: Tensor, *buffers: Tensor) -> Tensor:
        cross = buffers[of_self:]
        cache = EncoderDecoderCache(markers.over(buffers[:of_self], length), markers.over(cross, 1))
        cache.is_updated = dict.fromkeys(range(len(cross) // 2), True)  # the cross-attention cache is filled
        positions = cross[0].shape[2]
        mask = (torch.arange(positions, device=ids.device) < source_length).view(1, 1, 1, -1)
        encoded = cross[0].new_zeros((1, positions, 1))  # only its presence matters now
        read = {"encoder_outputs": (encoded,), "attention_mask": mask, "past_key_values": cache}
        logits: Tensor = network(decoder_input_ids=ids, use_cache=True, **read).logits[0]
        return logits

    return encoder_decoder if network.config.is_encoder_decoder else decoder_only


def _encode(network: Any, layouts: Layouts, size: int) -> Callable[[Tensor], list[Tensor]]:
    """Source ids to cross-attention keys and values. The decoder is run to see them, and then left out of the graph."""

    def encode(source: Tensor) -> list[Tensor]:
        cache = EncoderDecoderCache(markers.recording(), markers.recording())
        start = torch.zeros(1, 1, dtype=torch.long, device=source.device)
        network(input_ids=source, decoder_input_ids=start, past_key_values=cache, use_cache=True)
        return markers.recorded(cache.cross_attention_cache)

    graph = simplify(capture(encode, [torch.zeros(1, size, dtype=torch.long, device=network.device)]))
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
