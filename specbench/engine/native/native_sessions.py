"""Sessions whose steps are programs of C kernels: several steps, or whole passes, in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specbench.engine.capture.program import Step
from specbench.engine.capture.static_sessions import StaticSession, WindowedStatic
from specbench.engine.eager.network_parts import Part
from specbench.engine.native.lookups import MOST_CALLS, OfBuffers
from specbench.engine.native.native_run import BoundCall, Placed, Places
from specbench.engine.native.passes import Reader
from specbench.engine.native.prefill import LOGITS_ROWS, PROMPT_ROWS, LoweredPrompt
from specbench.engine.native.rollout import Rollout
from specbench.engine.native.whole import WholeStep
from specbench.engine.session import Tokens, require_readable
from specbench.sampling import TokenChoice

if TYPE_CHECKING:
    from specbench.engine.native.native_model import NativeModel


LOOKED_UP = 256  # slots of buffers all of whose places are looked up at once


class NativeSession(StaticSession):
    """A static session whose model can run several steps in one call, or whole passes."""

    model: NativeModel
    in_a_row = True  # slot i holds token i
    reuses_calls = True  # of earlier sessions over the same buffers

    def _collect(self) -> None:
        super()._collect()
        made = OfBuffers()
        if self.reuses_calls:
            made = self.model.lookups.of_buffers(self._held["self"], self._held.get("cross"), self._sources)
        self._calls, self._rollouts, self._readers = made.calls, made.rollouts, made.readers

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        """Read `tokens` and return their logits; the usual run in fewer lines than in `StaticSession`.

        A step's weights push what Python uses out of the processor's caches, so that each line costs a multiple here.
        """
        count, model = len(tokens), self.model
        step = model.program.one if count == 1 else model.program.several
        plain = parents is None and not self._tree.parents and self.ahead_part is None and not model.state_width
        plain = plain and model.rows <= count <= LOGITS_ROWS
        if not (plain and isinstance(step.run, WholeStep)) or isinstance(tokens, Tensor):
            return super().extend(tokens, parents)
        self._make_room(self.length + count)
        call = self._call_on(step, tokens)
        logits_LV = torch.empty(count, call.program.widths[0], dtype=call.program.dtype)
        call.run((logits_LV,))
        self.length += count
        return logits_LV

    def _release(self) -> None:
        super()._release()
        made = OfBuffers()
        self._calls, self._rollouts, self._readers = made.calls, made.rollouts, made.readers

    def _most_at_once(self, count: int, in_tree: bool, last_row: bool) -> int:
        """How many of `count` tokens or nodes one step reads; our kernels read a long text in parts, to save room."""
        most = super()._most_at_once(count, in_tree, last_row)
        if in_tree or (last_row and not self.model.reads_prompts):
            return most
        return min(most, PROMPT_ROWS if last_row else LOGITS_ROWS)

    def _ends_with_prompt(self, count: int) -> bool:
        run = self.model.program.prompt.run
        return not self.model.reads_prompts and isinstance(run, LoweredPrompt) and not run.is_native_for(count)

    def _step(self, step: Step, tokens: Tokens, rows: int) -> Tensor:
        if not isinstance(step.run, WholeStep) or isinstance(tokens, Tensor) or rows != len(tokens):
            return super()._step(step, tokens, rows)
        call = self._call_on(step, tokens)
        results = step.run.run.results(1, rows)
        call.run(results)
        return results[0][0]

    def due(self, step: Step, tokens: Tokens, parents: Sequence[int] | None) -> BoundCall:
        """The call of `step` that reads `tokens`; `has_read` counts them when it has run."""
        self.drop_ahead()
        if parents is not None and not self._tree:
            self.model.require_trees()
        self._place(tokens, parents)
        return self._call_on(step, tokens.tolist() if isinstance(tokens, Tensor) else tokens)

    def has_read(self, logits_LV: Tensor, tokens: Tokens, parents: Sequence[int] | None) -> None:
        """Count the tokens of a call that was `due` and has run."""
        if parents is None:
            self.length += len(tokens)
        self._keep_states(logits_LV, parents is not None)

    def _call_on(self, step: Step, tokens: Sequence[int]) -> BoundCall:
        """The call of `step` over `tokens` after `length`, or over these newest nodes."""
        assert isinstance(step.run, WholeStep)
        require_readable(tokens, self.model.readable)
        call = self._call(step, len(tokens))
        if call.tokens is None:
            call.tokens = (ctypes.c_int64 * len(tokens))()
        call.addresses[call.ids] = ctypes.addressof(call.tokens)
        call.tokens[:] = tokens
        return call

    def _call(self, step: Step, count: int, number: int = 0) -> BoundCall:
        """Call `number` of `step` over `count` tokens after `length`; the address of its tokens is still to be set."""
        calls, numbers = self._calls_of(step, count)
        while number >= len(calls):
            calls.append(calls[0].again())
        call = calls[number]
        call.place(self._placed_now(step, count, numbers))
        return call

    def _calls_of(self, step: Step, count: int) -> tuple[list[BoundCall], list[int]]:
        """The calls of `step` over `count` tokens, and which of its inputs are placed."""
        found = self._calls.get((id(step), count))
        if found is None:
            found = self._calls[id(step), count] = self._first_call(step, count)
        return found

    def _first_call(self, step: Step, count: int) -> tuple[list[BoundCall], list[int]]:
        """A call over this session's buffers, and which of its inputs are placed.

        Copied from an earlier session's: to look up each tensor would take as long as to read a token.
        """
        assert isinstance(step.run, WholeStep)
        ids_1L = self.model.blank(count)
        with torch.inference_mode():
            of_source = self._of_source(step, ids_1L, count)
        own, known = [self._source_length_1, *self._buffers, *of_source], self.model.lookups.calls
        slots = self._held["cross"].slots if "cross" in self._held else 0
        made = known.get(key := (id(step), count, self._capacity, slots))
        if made is None:
            with torch.inference_mode():
                inputs = self.inputs(step, ids_1L, count)
            numbers = [1, 2, 3, *range(4 + len(own), len(inputs))]
            if len(known) >= MOST_CALLS:
                known.clear()
            made = known[key] = step.run.call(inputs, numbers), numbers
            made[0].held = []  # which may be freed before the copy
        call = made[0].again()
        step.run.set_inputs(call, dict(enumerate(own, 4)))
        # Buffers are the session's, whose memory the calls of a size must not keep.
        call.held = [one for one in (*call.held, *of_source) if all(one is not buffer for buffer in self._buffers)]
        return [call], made[1]

    def _placed_now(self, step: Step, count: int, numbers: Sequence[int]) -> Placed:
        """The inputs of these numbers that a call of `step` over the newest `count` tokens or nodes looks up."""
        places, key = self.model.lookups.places, (id(step), count, self._capacity)
        is_by_length = self.in_a_row and not self._tree.parents
        if is_by_length and key in places and (known := places[key].get(self.length)) is not None:
            return known

        def computed() -> tuple[Tensor, ...]:
            ids_1L = self.model.blank(count)
            with torch.inference_mode():
                return self._placed(step, ids_1L, count, self._of_source(step, ids_1L, count))

        assert isinstance(step.run, WholeStep)
        looked_up = self._looked_up((id(step), count), count, computed)
        found = self.model.lookups.of(step.run, looked_up, numbers)
        if is_by_length:  # after the look-up, which may have cleared the table
            places.setdefault(key, Places(self._capacity)).put(self.length, found)
        return found

    def passes_in_calls(self, choice: TokenChoice, end: int, usual: int) -> bool:
        """Whether passes up to `end` tokens can run in calls; then it has room for `usual` tokens.

        If buffers grow within a completion, Python takes as long as two steps of a small model. `usual` is the length
        of the longest completion so far. A completion that ends earlier gets as much room: attention goes through all
        slots, and 128 more of them take 2% of a small model's step, so that parts of completions would be timed too
        short.
        """
        if not (self.in_a_row and self.model.chooses(choice) and end <= (self.model.longest or end)):
            return False
        self._make_room(min(usual, self.model.longest or usual))
        return True

    def reader(self, choice: TokenChoice, most: int, needed: int) -> Reader:
        """What reads up to `most` tokens at once in passes, with room for `needed` tokens in all."""
        self.drop_ahead()
        self._make_room(needed)
        key = choice, most, self.model.eos_ids
        found = self._readers.get(key)
        if found is None:
            found = self._readers[key] = Reader(*key)
        return found

    def step_at(self, length: int, count: int) -> tuple[BoundCall, Places]:
        """The call over `count` tokens after `length`, and what it reads there and after other lengths."""
        program, began, slots, places = self.model.program, self.length, self._capacity, self.model.lookups.places
        step = program.one if count == 1 else program.several
        numbers, lengths = self._calls_of(step, count)[1], [length]
        if (id(step), count, slots) not in places and slots <= LOOKED_UP:
            # All at once, so that no later pass pays.
            lengths = [*range(min(slots, self.model.longest or slots) - count + 1), length]
        try:
            for one in lengths:
                self.length = one
                self._placed_now(step, count, numbers)
            return self._call(step, count), places[id(step), count, slots]
        finally:
            self.length = began

    def hold_states(self, logits: int, rows: int, end: int) -> None:
        """Hold the states beside `rows` rows of logits at the address `logits`, which the next call writes over.

        The last row is of token number `end` - 1.
        """
        if not (width := self.model.state_width):
            return
        step = self.model.program.one if rows == 1 else self.model.program.several
        assert isinstance(step.run, WholeStep)
        run, count = step.run.run, rows * step.run.run.widths[0]
        memory = (ctypes.c_char * (count * run.dtype.itemsize)).from_address(logits)
        logits_LV = torch.frombuffer(memory, dtype=run.dtype, count=count).view(rows, -1)
        self._last.put(logits_LV[:, -width:].clone(), width, end)

    @property
    def capacity(self) -> int:
        """Tokens that its buffers have room for."""
        return self._capacity

    def rollout(
        self, tokens: Sequence[int], choice: TokenChoice, steps: int, uniform_G: Tensor | None
    ) -> tuple[list[int], Tensor | None] | None:
        """Draft `steps` tokens in one call: `Session.rollout`; a text that ends has no tokens after its end."""
        model, end = self.model, self.length + len(tokens) + steps - 1
        # If a draft reads its states, these are to be kept.
        if not model.chooses(choice) or model.state_width or end > (model.longest or end) or self._tree:
            return None
        rollout = self._rollout(tokens, choice, steps)
        chosen, rows_GV = rollout(uniform_G)
        self.length = end - steps + len(chosen)
        return chosen, rows_GV

    def rollout_ahead(
        self, part: Part, tokens: Sequence[int], choice: TokenChoice, steps: int, uniform_G: Tensor | None
    ) -> tuple[list[int], Tensor | None] | None:
        if not self.in_a_row or self._tree:
            return None
        began = self.length + self.ahead
        self._make_room(began + len(tokens) + steps - 1)
        reading = self._reading_with(part)
        if not isinstance(reading, NativeSession):
            return None
        reading.length = began
        found = reading.rollout(tokens, choice, steps, uniform_G)
        self.ahead = reading.length - self.length
        return found

    def _rollout(self, tokens: Sequence[int], choice: TokenChoice, steps: int) -> Rollout:
        """`steps` steps, of which the first reads `tokens`, ready to run."""
        program, count, began = self.model.program, len(tokens), self.length
        one, first = program.one, program.one if count == 1 else program.several
        self.drop_ahead()
        self._make_room(began + count + steps - 1)
        calls = [self._call_on(first, tokens)]
        for self.length in range(began + count, began + count + steps - 1):
            calls.append(self._call(one, 1, len(calls)))
        self.length = began
        key = count, steps, choice, self.model.eos_ids
        rollout = self._rollouts.get(key)
        if rollout is None:
            assert isinstance(one.run, WholeStep)
            rollout = self._rollouts[key] = Rollout(calls, one.run.ids, choice, self.model.eos_ids)
        return rollout


class WindowedNative(WindowedStatic, NativeSession):
    """A native session with a window."""

    model: NativeModel
    in_a_row = False

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        return StaticSession.extend(self, tokens, parents)  # in blocks that the window has room for

    def rollout(
        self, tokens: Sequence[int], choice: TokenChoice, steps: int, uniform_G: Tensor | None
    ) -> tuple[list[int], Tensor | None] | None:
        began = self.length
        found = super().rollout(tokens, choice, steps, uniform_G)
        if found is not None:
            self.text[began:] = [*tokens, *found[0]][: self.length - began]
        return found
