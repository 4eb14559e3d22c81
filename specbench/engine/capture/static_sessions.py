"""Sessions over preallocated caches and a captured step.

A cache is a set of buffers with room for a number of tokens, of which the first `length` count; rolling back is moving
that number. Buffers grow by doubling, so that attention covers at most twice the tokens read, and go back to
the model's pool with their session.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from specbench.engine.beginnings import PROMPTS, Beginnings, read_prefix
from specbench.engine.buffers import MOST_STACKED, Buffers
from specbench.engine.capture.program import Step
from specbench.engine.clock import RUNS
from specbench.engine.eager.network_parts import Part
from specbench.engine.eager.sessions import NetworkSession
from specbench.engine.layout import Layout, OpenTree
from specbench.engine.session import Prompt, Tokens
from specbench.engine.window import Window, Windowed

if TYPE_CHECKING:
    from specbench.engine.capture.static import StaticModel

MOST_OF_MASK = 2**24  # tokens of a prompt that are read at once, times slots: a mask of 64 MB
PROMPT_TOKENS = 512  # that torch's kernels read at once if they end with the buffers: few attend to later slots
ENDS = 64  # in multiples of this: positions and masks are cached by size
MOST_CACHED_MASK = 2**20
MOST_ROWS = 16  # of one step if rows must not depend on their number; longer blocks are read in parts


def tokens_at_once(slots: int) -> int:
    """The tokens of a prompt that are read at once into so many slots, so that their mask stays small."""
    return max(1, MOST_OF_MASK // slots)


class StaticSession(NetworkSession):
    """One sequence: buffers, and how many of their slots count."""

    model: StaticModel

    def __init__(self, model: StaticModel, prompt: Prompt) -> None:
        self._begin(model)
        self._sources = len(prompt.source)
        self._source_length_1 = model.number(len(prompt.source))
        with torch.inference_mode():
            if model.program.encode is not None:
                self._read_source(prompt.source)
            self.reserve(len(prompt.prefix))
            read_prefix(self, prompt, self.copies_from(model), len(prompt.prefix) - 1 - bool(model.state_width))

    def _begin(self, model: StaticModel) -> None:
        """Set the state of a session that has read nothing and holds no buffers."""
        super().__init__(model)
        self._parts: dict[StaticModel, StaticSession] = {}
        self._held: dict[str, Buffers] = {}
        weakref.finalize(self, model.pool.give_back, self._held)

    @staticmethod
    def copies_from(model: StaticModel) -> Beginnings | None:
        """The beginnings that a session may copy. A draft that needs states of the prompt needs all of them."""
        return None if model.states_of_prompt else model.beginnings

    def read_first(self, tokens: Sequence[int]) -> None:
        # A long prompt's logits are of no use, and large.
        self._run(tokens, last_row=not self.model.states_of_prompt)

    def beginning(self, count: int) -> Buffers:
        return self._held["self"].beginning(count)

    def lent(self, count: int) -> Buffers:
        return self._held["self"]

    def begin_with(self, kept: Buffers, count: int) -> None:
        self._held["self"].copy_slots(kept, count)
        self.length = count

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        if not len(tokens):
            return self.no_logits()
        with torch.inference_mode():
            return self._run(tokens, parents)

    def rollback(self, length: int) -> None:
        self.drop_ahead()
        self.length = min(self.length, length)
        if self._tree:
            self._tree.close()
            self._last.select([], self.length)

    def drop_ahead(self) -> None:
        if self.ahead_part is not None:
            self.ahead = 0  # what the buffers hold past `length` does not count, and is written over
            self._ahead_tree.close()

    def crop_ahead(self, tokens: int) -> None:
        self.ahead -= tokens
        self._ahead_tree.close()

    def read_ahead(self, part: Part, tokens: Tokens, parents: Sequence[int] | None) -> Tensor:
        self._tree.grow((), None)  # the tree of all layers is selected from before only the first layers read on
        with torch.inference_mode():
            self._make_room(self.length + self.ahead + len(self._ahead_tree) + len(tokens))
            reading = self._reading_with(part)
            reading.length = self.length + self.ahead
            logits_LV = reading._run(tokens, parents)
        self.ahead = reading.length - self.length
        return logits_LV

    def _reading_with(self, part: Part) -> StaticSession:
        """A session of `part` of the model over the buffers that this session has for its layers; cached."""
        model = cast("StaticModel", self.model.shallow(*part))
        if model not in self._parts:
            made = self._parts[model] = copy.copy(self)
            made.model, made._parts = model, {}
            made._tree, made._ahead_tree = self._ahead_tree, OpenTree()
            made._held = {kind: buffers.first(len(model.program.shapes[kind])) for kind, buffers in self._held.items()}
            made._collect()
        return self._parts[model]

    def _read_source(self, source: tuple[int, ...]) -> None:
        slots, beginnings = self.model.source_slots(len(source)), self.copies_from(self.model)
        own = self._held["cross"] = self.model.pool.take("cross", slots)
        if beginnings is not None and (kept := beginnings.of_source(source)) is not None:
            own.copy_slots(kept, slots)
            PROMPTS.copied += len(source)
            return
        assert self.model.program.encode is not None
        self.model.program.encode.into(own.layers, self.model.ids(source))
        PROMPTS.read += len(source)
        if beginnings is not None and beginnings.repeats(source):
            beginnings.keep_source(source, own.beginning(slots))

    def reserve(self, needed: int) -> None:
        """Take buffers with room for `needed` tokens from the pool, and copy the cached tokens into them.

        Large buffers grow one after another instead, and are not returned to the pool.
        """
        old, self._capacity = self._held.get("self"), self.model.capacity(needed)
        count = self.length + max(0, self.ahead) + len(self._tree) + len(self._ahead_tree)
        self._parts.clear()
        if old is not None and self._capacity > MOST_STACKED and self.model.grows_in_place:
            self._release()
            self._held["self"] = old.grown(self._capacity, count)
        else:
            new = self.model.pool.take("self", self._capacity)
            if old is not None:
                new.copy_slots(old, count)
                self.model.pool.give_back({"self": old})
            self._held["self"] = new
        self._collect()

    def _release(self) -> None:
        """Hold the buffers nowhere but in `_held`."""
        self._buffers: list[Tensor] = []

    def _collect(self) -> None:
        """List the buffers as a step takes them: keys and values layer by layer, self-attention first."""
        self._buffers = [
            tensor for kind in ("self", "cross") if kind in self._held for tensor in self._held[kind].layers
        ]

    def _make_room(self, needed: int) -> None:
        if needed > self._capacity:
            with torch.inference_mode():
                self.reserve(needed)

    def _run(self, tokens: Tokens, parents: Sequence[int] | None = None, last_row: bool = False) -> Tensor:
        self.drop_ahead()
        if parents is not None and not self._tree:
            self.model.require_trees()
        most = len(tokens) if len(tokens) == 1 else self._most_at_once(len(tokens), parents is not None, last_row)
        blocks = [
            self._read(
                tokens[first : first + most], None if parents is None else parents[first : first + most], last_row
            )
            for first in range(0, len(tokens), most)
        ]
        logits_LV = blocks[-1] if last_row or len(blocks) == 1 else torch.cat(blocks)
        self._keep_states(logits_LV, parents is not None)
        return logits_LV

    def _most_at_once(self, count: int, in_tree: bool, last_row: bool) -> int:
        """How many of `count` tokens or nodes one step reads."""
        if last_row:
            most = tokens_at_once(self.model.capacity(self.length + count))
            return min(most, PROMPT_TOKENS) if self._ends_with_prompt(count) else most
        return (self.model.most_rows if self.model.invariant else None) or count

    def _read(self, tokens: Tokens, parents: Sequence[int] | None, last_row: bool) -> Tensor:
        """Logits [L, V] of `tokens`, all read in one step; nothing of use with `last_row`."""
        count, model, tree, program = len(tokens), self.model, self._tree, self.model.program
        self._place(tokens, parents)
        rows = count if last_row else max(count, model.rows)
        step = program.one if rows == 1 else program.prompt if last_row else program.several
        if program.tree is not None and not tree.is_chain:
            step, rows = program.tree, max(rows, 2)
        with self._up_to(self.length + count) if last_row and self._ends_with_prompt(count) else nullcontext():
            logits_LV = self._step(step, tokens, rows)
        if parents is None:
            self.length += count
        return logits_LV if rows == count or last_row else logits_LV[:count]

    def _ends_with_prompt(self, count: int) -> bool:
        """Whether a part of a prompt of `count` tokens is read as if the buffers ended with it."""
        return self.model.engine == "static" and self.model.device.type == "cpu"

    @contextmanager
    def _up_to(self, slots: int) -> Iterator[None]:
        """A context in which the buffers end after so many slots: torch's kernels read all slots they are given."""
        capacity, buffers, own = self._capacity, self._buffers, len(self._held["self"].layers)
        self._capacity = min(capacity, -(-slots // ENDS) * ENDS)
        self._buffers = [*(one[:, :, : self._capacity] for one in buffers[:own]), *buffers[own:]]
        try:
            yield
        finally:
            self._capacity, self._buffers = capacity, buffers

    def _place(self, tokens: Tokens, parents: Sequence[int] | None) -> None:
        """Make room for `tokens`, as nodes of the tree if they have parents."""
        if parents is not None or self._tree.parents:
            self._tree.grow(tokens, parents)
        self._make_room(self.length + (len(self._tree.parents) or len(tokens)))

    def source_states(self, layer: int = -1) -> tuple[Tensor, Tensor] | None:
        if "cross" not in self._held:
            return None
        keys, values = (states[:, :, : self._sources] for states in self._held["cross"].pair(layer))
        return keys, values

    def of_source(self, layers: Sequence[int]) -> tuple[int, Tensor, list[Tensor]]:
        """The source's length, also as a tensor [1], and these decoder layers' buffers of its keys and values."""
        buffers = [tensor for layer in layers for tensor in self._held["cross"].pair(layer)]
        return self._sources, self._source_length_1, buffers

    def _step(self, step: Step, tokens: Tokens, rows: int) -> Tensor:
        """Logits [`rows`, V], of which the first belong to `tokens`."""
        return RUNS.run(step.run, *self.inputs(step, self._ids(tokens, rows), len(tokens)))[0]

    def inputs(self, step: Step, ids_1L: Tensor, count: int) -> list[Tensor]:
        """The inputs of `step` to read `count` tokens, padded to L."""
        # The step itself reads no positions: values that depend on them are also inputs.
        fixed = self._of_source(step, ids_1L, count)
        placed = self._looked_up((id(step), ids_1L.shape[1]), count, partial(self._placed, step, ids_1L, count, fixed))
        return [ids_1L, *placed[:3], self._source_length_1, *self._buffers, *fixed, *placed[3:]]

    def _ids(self, tokens: Tokens, rows: int) -> Tensor:
        """`tokens` as a step reads them, filled up to so many rows as `Layout.filled` does."""
        missing = max(0, rows - len(tokens))
        if isinstance(tokens, Tensor):
            return self.model.ids(torch.cat([tokens, tokens[-1:].expand(missing)]) if missing else tokens)
        return self.model.ids([*tokens, *[tokens[-1]] * missing] if missing else tokens)

    def _looked_up(
        self, what: tuple[object, ...], count: int, compute: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Tensors that depend on where the newest `count` tokens or nodes are, computed the first time only.

        `what` tells such tensors apart.
        """
        nodes = self._tree.parents
        shape = () if self._tree.is_chain else nodes
        cached = self.model.tree_positions if shape else self.model.positions
        key = (what, self.length + (len(nodes) - count if nodes else 0), count, self._capacity, shape)
        return cached.once(key, compute) if count * self._capacity <= MOST_CACHED_MASK else compute()

    def _layout(self, count: int) -> Layout:
        return self._tree.layout(self.length, count, self.model.numbers(self._capacity))

    @torch.inference_mode()
    def _keep_nodes(self, length: int, tree: OpenTree, path: Sequence[int], part: Part | None = None) -> None:
        held = self._held if part is None else self._reading_with(part)._held
        held["self"].move_slots([length + node for node in tree.select(path)], length)

    def _placed(self, step: Step, ids_1L: Tensor, count: int, fixed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The layout of the newest `count` tokens or nodes, and what the step computes from it."""
        layout = self._layout(count).filled(ids_1L.shape[1])
        inputs = (ids_1L, *layout.tensors, self._source_length_1, *self._buffers)
        return *layout.tensors, *step.of_layout(*inputs, *fixed)

    def _of_source(self, step: Step, ids_1L: Tensor, count: int) -> tuple[Tensor, ...]:
        """The results of the first two parts of `step`, which sizes and the source's length determine; cached."""
        rows = ids_1L.shape[1]

        def compute() -> tuple[Tensor, ...]:
            layout = self._layout(count).filled(rows)
            inputs = (ids_1L, *layout.tensors, self._source_length_1, *self._buffers)
            of_sizes = step.of_sizes(*inputs)
            return *of_sizes, *step.of_source(*inputs, *of_sizes)

        return self.model.sources.once((id(step), self._sources, rows, self._capacity), compute)

    def look_up(self, counts: Sequence[int]) -> None:
        """Compute all positions of the first buffers once, for runs over so many tokens, so that no later step pays."""
        program, began = self.model.program, self.length
        end = min(self._capacity, self.model.longest or self._capacity)
        for count in counts:
            rows = max(count, self.model.rows)
            step, ids_1L = program.one if rows == 1 else program.several, self._ids([0] * count, rows)
            fixed = self._of_source(step, ids_1L, count)
            for self.length in range(began, end - count + 1):
                self._looked_up((id(step), rows), count, partial(self._placed, step, ids_1L, count, fixed))
        self.length = began


class WindowedStatic(Windowed, StaticSession):
    """Over buffers of a fixed size."""

    def __init__(self, model: Any, prompt: Prompt, window: Window) -> None:
        self.open(window)
        super().__init__(model, prompt)

    def reserve(self, needed: int) -> None:
        if "self" not in self._held:
            self._capacity = self.window.slots
            self._held["self"] = self.model.pool.take("self", self._capacity)
            self._collect()

    def _make_room(self, needed: int) -> None:
        self.room_for(needed - self.length)

    def _ends_with_prompt(self, count: int) -> bool:
        return False  # slots are not the text's

    def _place(self, tokens: Tokens, parents: Sequence[int] | None) -> None:
        super()._place(tokens, parents)
        self.note(tokens, parents)

    def _run(self, tokens: Tokens, parents: Sequence[int] | None = None, last_row: bool = False) -> Tensor:
        first = 0
        found = []
        for block in self.blocks(tokens, parents):
            own = None if parents is None else parents[first : (first := first + len(block))]
            found.append(super()._run(block, own, last_row))
        return found[-1] if last_row or len(found) == 1 else torch.cat(found)

    def _layout(self, count: int) -> Layout:
        numbers_1C = self.model.numbers(self._capacity)
        slots = self._tree.layout(self.length - self.dropped, count, numbers_1C)
        return self.window.over(slots, self.dropped, numbers_1C)

    def _looked_up(
        self, what: tuple[object, ...], count: int, compute: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        return super()._looked_up((*what, self.window, self.dropped), count, compute)

    def shorten(self, length: int) -> None:
        StaticSession.rollback(self, length)

    @torch.inference_mode()
    def move_up(self, first: int) -> None:
        self._held["self"].move_slots(list(range(first, self._capacity)), self.window.sinks)

    @torch.inference_mode()
    def copy(self, whole: NetworkSession, first: int, stop: int, to: int) -> None:
        assert isinstance(whole, StaticSession)
        self._held["self"].copy_range(whole._held["self"], first, stop, to)
