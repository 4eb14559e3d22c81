"""A model's decoding step and its reading of a source, captured from the `transformers` module and ready to run.

Supports both families; independent of sessions. The caches are buffers handed in by the caller. `rows_agree` compares a
step over several rows with the step over one; `captured_function` captures a function of rows, such as a draft's heads.

Shapes: B rows, L new tokens, C slots of the self-attention buffers, S of the cross-attention buffers, V logits.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from transformers import EncoderDecoderCache

from specbench.engine.buffers import TensorCache
from specbench.engine.cache_names import cache_argument
from specbench.engine.capture import saved_captures
from specbench.engine.capture.hoist import Hoisted, hoist
from specbench.engine.capture.invariant import lower_invariant, with_path_order
from specbench.engine.capture.lower import Lowering, PackedWeights, direct, lower, with_folded_weights
from specbench.engine.capture.marking import cache_over, marked, recorded, recording, replaced
from specbench.engine.capture.nodes import (
    add_constant,
    capture,
    compiled_to_python,
    constant,
    example_sizes,
    finished,
    has_effect,
    inputs_of,
    replace,
)
from specbench.engine.capture.rewrite import (
    for_caches,
    for_last_row,
    for_one_token,
    for_outputs,
    with_merged_weights,
    without_head,
    without_repetition,
)
from specbench.engine.layout import Layout, chain, ragged
from specbench.engine.placement import Placement

# The largest difference of two computations of the same logits, of the largest logit.
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
AMPLIFIED = 5.0  # times that: rows are summed in another order, and a network may amplify rounding
CHECKED_TOKENS, CHECKED_SLOTS = 3, 64  # of the comparison; the source has as many slots
CHECKED_CACHED = (2, 9)  # tokens that each row has read
CHECKED_SOURCES = (CHECKED_SLOTS, 5)  # tokens of each row's source

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
    before it. The first three depend only on sizes and weights, the source's length, and the layout, so that their
    results can be cached; `run` returns logits [B, L, V].
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
class Headless:
    """Steps that return what the head reads of their last token [B, 1, E], and the head's weight and bias.

    Attributes:
        one: steps over one token.
        last: steps over several.
    """

    one: Step
    last: Step
    weight_VE: Tensor
    bias_V: Tensor | None


@dataclass(frozen=True)
class Program:
    """A captured model.

    Attributes:
        one: steps over one token.
        several: steps over any number from 2.
        prompt: reads a prompt into the caches; what it returns is of no use.
        tree: of an invariant program, steps over two nodes of a tree or more.
        encode: reads a source.
        make_headless: makes `headless`.
    """

    shapes: dict[str, list[tuple[int, int]]]  # (heads, channels) of each buffer for 'self' and 'cross' attention
    cache_dtype: torch.dtype
    placement: Placement  # how the captured network took positions
    cached: Path | None  # the file that the capture was read from
    one: Step
    several: Step
    prompt: Step
    tree: Step | None
    encode: "Encoding | None"
    make_headless: Callable[[], Headless | None]

    @property
    def runs(self) -> list[Callable[..., Tensor]]:
        """What its steps over tokens run."""
        return [step.run for step in (self.one, self.several, self.prompt, self.tree) if step is not None]

    @cached_property
    def headless(self) -> Headless | None:
        """The steps without their head, made when first asked for; None if its output is no linear map's."""
        return self.make_headless()

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
        """`network` captured, its steps made ready by `lowering`. Raises whatever its code raises if it cannot.

        `of_prompt` makes the reading of a source and a prompt ready. `weights` belong to a program that shares them
        with this one. Steps take one row, or, without `one_row`, two or more.
        """
        weights = weights or PackedWeights()
        with marked(network), torch.no_grad():
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

            found = saved_captures.cached_capture(network, [str(cache_dtype), one_row], make)
            placement.has_followed(found.masked)
            captured = with_folded_weights(with_merged_weights(found.graph), weights)
            graph = for_outputs(captured, 0, range(SOURCE_LENGTH + 1 + len(buffers)))
            sizes = hoist(graph, [], with_constants=True)
            encode = for_outputs(captured, slice(1, None), [len(inputs) - 1]) if cross_states else None
            along_paths = None
            if lowering is lower_invariant:
                own = range(SOURCE_LENGTH + 1, SOURCE_LENGTH + 1 + len(self_states))
                along_paths = with_path_order(sizes.rest, POSITIONS, VISIBLE, own)

        def step(graph: GraphModule, by: Lowering = lowering, one_token: bool = False) -> Step:
            return make_step(sizes, graph, lambda module: by(module, weights, one_token))

        @without_collecting()
        def headless() -> Headless | None:
            one, last = (without_head(special(sizes.rest)) for special in (for_one_token, for_last_row))
            return (
                None if one is None or last is None else Headless(step(one[0], one_token=True), step(last[0]), *one[1:])
            )

        return Program(
            shapes,
            cache_dtype,
            placement,
            found.file,
            one=step(for_one_token(sizes.rest), one_token=True),
            several=step(sizes.rest),
            prompt=step(for_caches(sizes.rest), of_prompt),
            tree=None if along_paths is None else step(along_paths),
            encode=None if encode is None else Encoding(encode, weights, of_prompt),
            make_headless=headless,
        )


def what_it_caches(network: Any, source: Tensor | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of one token for self-attention and of `source` [1, S] (unset: one token) for cross-attention.

    They are recorded in a run of the model.
    """
    one = torch.zeros(1, 1, dtype=torch.long, device=network.device)
    cache = recording()
    if not network.config.is_encoder_decoder:
        network(input_ids=one, use_cache=True, **{cache_argument(network): cache})
        return recorded(cache), []
    both = EncoderDecoderCache(cache, recording())
    read = one if source is None else source
    network(input_ids=read, decoder_input_ids=one, use_cache=True, **{cache_argument(network): both})
    return recorded(cache), recorded(both.cross_attention_cache)


def _decoding(network: Any, placement: Placement, of_self: int) -> Callable[..., tuple[Tensor, ...]]:
    """The step and, in the same run, the cross-attention keys and values, as a function of only tensors.

    It returns (logits, keys and values layer by layer).
    """
    named = cache_argument(network)

    def decoder_only(
        ids: Tensor, slots: Tensor, positions: Tensor, visible: Tensor, _: Tensor, *buffers: Tensor
    ) -> tuple[Tensor, ...]:
        layout = Layout(slots, positions, visible)
        cache = cache_over(buffers, slots, layout.new_positions_BL[0, 0])
        with placement.applying(layout) as options:
            return (network(input_ids=ids, use_cache=True, **{named: cache}, **options).logits,)

    def encoder_decoder(
        ids: Tensor, slots: Tensor, positions: Tensor, visible: Tensor, source_length: Tensor, *others: Tensor
    ) -> tuple[Tensor, ...]:
        *buffers, source = others
        layout = Layout(slots, positions, visible)
        cross = replaced(buffers[of_self:])  # the step reads buffers, whatever the source
        cross_slots = torch.arange(buffers[of_self].shape[2], device=ids.device)
        options = {
            "encoder_outputs": network.get_encoder()(input_ids=source),
            "attention_mask": (cross_slots < source_length.unsqueeze(-1))[:, None, None, :],
            named: EncoderDecoderCache(cache_over(buffers[:of_self], slots, layout.new_positions_BL[0, 0]), cross),
        }
        with placement.applying(layout) as placed:
            logits: Tensor = network(decoder_input_ids=ids, use_cache=True, **options, **placed).logits
        return logits, *recorded(cross)

    return encoder_decoder if network.config.is_encoder_decoder else decoder_only


class Encoding:
    """A captured graph, made ready: from source ids [1, S] to cross-attention keys and values, layer by layer."""

    def __init__(self, graph: GraphModule, weights: PackedWeights, lowering: Lowering) -> None:
        parts = hoist(graph, [], with_constants=True)
        self._biases = compiled_to_python(parts.hoisted)
        self._run = lowering(parts.rest, weights, False)
        self.biases_of_size = TensorCache()  # relative position biases

    def __call__(self, source: Tensor) -> list[Tensor]:
        states: list[Tensor] = self._run(source, *self._biases_of(source))
        return states

    def into(self, buffers: Sequence[Tensor], source: Tensor) -> None:
        """Write the keys and values of `source` into the first slots of `buffers`, directly if the lowering can."""
        write = getattr(self._run, "into", None)
        if write is None or not write(buffers, source, *self._biases_of(source)):
            for buffer, state in zip(buffers, self(source), strict=True):
                buffer[:, :, : source.shape[1]] = state

    def _biases_of(self, source: Tensor) -> tuple[Tensor, ...]:
        return self.biases_of_size.once(tuple(source.shape), lambda: self._biases(source))


def make_step(sizes: Hoisted, module: GraphModule, lowered: Callable[[Any], Callable[..., Tensor]]) -> Step:
    """The four parts of a step.

    Args:
        sizes: the first part, and the graph without it.
        module: `sizes.rest`, or a special case of it (for one token, for caches).
        lowered: makes the last part ready to run.
    """
    # hoist() appends inputs: the results of sizes, which the next two may read, of the source, of the layout.
    placeholders = len(inputs_of(module))
    of_sizes = range(placeholders - sizes.count, placeholders)
    source = hoist(module, [SOURCE_LENGTH, *of_sizes], with_constants=False)
    layout = hoist(source.rest, [SLOTS, POSITIONS, VISIBLE, *of_sizes], with_constants=False)
    return Step(compiled_to_python(sizes.hoisted), direct(source.hoisted), direct(layout.hoisted), lowered(layout.rest))


def largest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest |ours - theirs| of a run, as a share of its largest finite |theirs|; NaN if a logit is NaN."""
    found = []
    for one, other in zip(ours, theirs, strict=True):
        known = other.isneginf() & one.isneginf()  # tokens that a short head does not predict
        largest = other.masked_fill(known, 0).abs().max().clamp(min=1e-30)
        found.append(one.masked_fill(known, 0).sub(other.masked_fill(known, 0)).abs().max() / largest)
    return float(torch.stack(found).max())


@torch.inference_mode()
def rows_agree(
    alone: Program, several: Program, vocabulary_size: int, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether rows that are read together have the logits that each has by itself. `dtype` is the network's."""
    draw, rows = torch.Generator().manual_seed(0), len(CHECKED_CACHED)
    numbers_1C = torch.arange(CHECKED_SLOTS, device=device).unsqueeze(0)
    buffers = [
        torch.randn(rows, heads, CHECKED_SLOTS, channels, generator=draw).to(device, several.cache_dtype)
        for kind in ("self", "cross")
        for heads, channels in several.shapes[kind]
    ]
    for step, count in (("one", 1), ("several", CHECKED_TOKENS), ("prompt", CHECKED_TOKENS)):
        ids_BL = ((torch.arange(rows * count) + 1) * vocabulary_size // (rows * count + 1)).view(rows, count).to(device)
        layout = ragged(torch.tensor(CHECKED_CACHED, device=device), count, numbers_1C, numbers_1C)
        inputs = [ids_BL, *layout.tensors, torch.tensor(CHECKED_SOURCES, device=device), *buffers]
        together_BLV = _run(getattr(several, step), inputs)
        each_BLV = torch.cat(
            [_run(getattr(alone, step), [one[row : row + 1] for one in inputs]) for row in range(rows)]
        )
        difference = largest_difference([together_BLV.float()], [each_BLV.float()])
        if not difference <= AMPLIFIED * ROUNDING[dtype]:  # also false if it is NaN
            return False
    return True


def _run(step: Step, inputs: list[Tensor]) -> Tensor:
    own = [one.clone() for one in inputs]  # a step writes into buffers
    return step.after_sizes(step.of_sizes(*own), *own)


SMALL = 0.02
Rows = Callable[..., Tensor]  # of tensors [1, N, ...], with weights that do not change


def captured_function(
    function: Rows, widths: Sequence[int], like: Tensor, lowering: Lowering, packed: PackedWeights
) -> Rows:
    """`function` of tensors [1, N, W], one of each of `widths`, on the device and in the dtype of `like`.

    Raises whatever its code raises if it cannot be captured; RuntimeError if the capture differs from it.
    """
    (rows,) = example_sizes({*widths, *like.shape}, 1)
    # Small numbers, as T5's last states are: there an epsilon shows.
    noise = torch.Generator().manual_seed(0)
    examples = [(SMALL * torch.randn(1, rows, width, generator=noise)).to(like) for width in widths]
    graph = with_merged_weights(_folded(without_repetition(capture(function, examples))))
    one, several = lowering(for_one_token(graph), packed, True), lowering(graph, packed, False)
    for made, count in ((one, 1), (several, rows)):
        given = [example[:, :count] for example in examples]
        difference = largest_difference([made(*given).float()], [function(*given).float()])
        if not difference <= ROUNDING[like.dtype]:
            raise RuntimeError(f"the captured function differs by {difference:.2g} of its largest number")
    return lambda *inputs: (one if inputs[0].shape[1] == 1 else several)(*inputs)


def _folded(module: GraphModule) -> GraphModule:
    """`module` with what depends on nothing but weights computed once, in place."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or has_effect(node) or not node.all_input_nodes:
            continue
        given: dict[Node, Tensor] = {}
        for one in node.all_input_nodes:
            if (found := constant(module, one)) is not None:
                given[one] = found
        if len(given) == len(node.all_input_nodes):
            target: Any = node.target
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
            with torch.no_grad():
                made = target(*args, **kwargs)
            if isinstance(made, Tensor):
                with module.graph.inserting_before(node):
                    held = add_constant(module, made.detach())
                replace(node, held)
    return finished(module)
