"""A captured step as a program of C kernels: the model, and sessions that run several steps or passes in one call."""

import contextlib
import ctypes
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from specbench.engine.batch_steps import CapturedSteps, RowByRow
from specbench.engine.buffers import CACHED_BYTES, Buffers, size_of
from specbench.engine.capture.lower import Lowering
from specbench.engine.capture.program import Program, Step, captured_function
from specbench.engine.capture.static import StaticModel
from specbench.engine.capture.static_sessions import StaticSession, WindowedStatic
from specbench.engine.capture.torch_private import computes_bf16
from specbench.engine.native.passes import NativePasses, Pace, Reader
from specbench.engine.native.segments import (
    Call,
    LoweredPrompt,
    Placed,
    Places,
    Rollout,
    ShortCaches,
    WholeStep,
    lower_native,
    lower_native_invariant,
    run_at_once,
)
from specbench.engine.session import PassPlan, Prompt, Read, Session, Tokens, require_readable
from specbench.errors import first_line
from specbench.sampling import Choice

PROMPT_ROWS = 256  # tokens of a text that our kernels read at once: more would gain 2%
MOST_ADDRESSES = 16384  # of looked-up positions that are held
LOOKED_UP = 256  # slots of buffers all of whose places are looked up at once
MOST_CALLS = 512  # that are kept to copy, and sets of buffers whose calls are


@dataclass
class OfBuffers:
    """Calls that sessions over the same buffers share, one after another.

    calls: of a step over so many tokens (several for a rollout), and which of its inputs are placed.
    """

    calls: dict[tuple[int, int], tuple[list[Call], list[int]]] = field(default_factory=dict)
    rollouts: dict[tuple[int, int, Choice, frozenset[int]], Rollout] = field(default_factory=dict)
    readers: dict[tuple[Choice, int, frozenset[int]], Reader] = field(default_factory=dict)


class Lookups:
    """What the sessions of a model look up once.

    places: what a step reads of the place in a text, by step, tokens and slots.
    calls: a call by step, tokens, and slots of the text and the source, and which of its inputs are placed.
    pace: of its completions.
    """

    def __init__(self) -> None:
        self._of_buffers: dict[tuple[int, ...], tuple[list[weakref.ref[Buffers]], OfBuffers]] = {}
        self._addresses: dict[int, tuple[tuple[Tensor, ...], Placed]] = {}
        self._bytes = 0
        self.places: dict[tuple[int, ...], Places] = {}
        self.calls: dict[tuple[int, ...], tuple[Call, list[int]]] = {}
        self.pace = Pace()

    def clear(self) -> None:
        """Forget what depends on weights, and the calls that read it."""
        for held in (self._addresses, self.places, self._of_buffers):
            held.clear()
        self._bytes = 0

    def of_buffers(self, own: Buffers, of_source: Buffers | None, source: int) -> "OfBuffers":
        """The calls of sessions over these buffers, with a source of so many tokens."""
        key = id(own), id(of_source), source
        buffers = [own] if of_source is None else [own, of_source]
        known, found = self._of_buffers.get(key, ([], None))
        if found is None or any(one() is not other for one, other in zip(known, buffers, strict=True)):
            if len(self._of_buffers) >= MOST_CALLS:
                self._of_buffers.clear()
            found = OfBuffers()
            self._of_buffers[key] = [weakref.ref(one) for one in buffers], found
        return found

    def of(self, run: WholeStep, looked_up: tuple[Tensor, ...], numbers: Sequence[int]) -> Placed:
        """Tensors that a session has looked up, which are inputs of these numbers."""
        found = self._addresses.get(id(looked_up))
        if found is None or found[0] is not looked_up:
            # An entry holds its tensors, also once the cache that they come from has dropped them.
            if len(self._addresses) >= MOST_ADDRESSES or self._bytes + size_of(looked_up) > CACHED_BYTES:
                self.clear()
            self._bytes += size_of(looked_up)
            placed = run.placed(dict(zip(numbers, looked_up, strict=True)))
            found = self._addresses[id(looked_up)] = looked_up, placed
        return found[1]


class NativeModel(StaticModel):
    """A `StaticModel` whose steps run in kernels of ours, compiled on this machine. Needs a C compiler."""

    engine = "native"
    rolls_out = True
    lowering: Lowering = staticmethod(lower_native)
    invariant_lowering: Lowering = staticmethod(lower_native_invariant)
    prompt_lowering: Lowering = LoweredPrompt
    most_rows: int | None = None

    def _captured(self, lowering: Lowering) -> Program:
        """The network's program, its caches in the model's bf16 if our kernels read them in all of its layers.

        A source's keys and values stay in fp32: sources are short, and each step reads them again.
        """
        short = self.network.dtype == torch.bfloat16 and not self.is_encoder_decoder
        if short:
            with contextlib.suppress(ShortCaches):
                return Program.of(self.network, torch.bfloat16, lowering, self.packed, of_prompt=self.prompt_lowering)
        return super()._captured(lowering)

    @cached_property
    def lookups(self) -> Lookups:
        """What its sessions look up once."""
        return Lookups()

    def _forget_placed(self) -> None:
        self.lookups.clear()
        super()._forget_placed()

    def start(self, prompt: Prompt) -> "NativeSession":
        return NativeSession(self, prompt) if self.window is None else WindowedNative(self, prompt, self.window)

    @cached_property
    def reads_prompts(self) -> bool:
        """Whether our kernels read prompts of any length."""
        run = self.program.last.run
        return self.torch_is_slow or (isinstance(run, LoweredPrompt) and run.is_always_native)

    @cached_property
    def torch_is_slow(self) -> bool:
        """Whether torch's linear maps over many rows are: in bf16 on a processor without instructions for it."""
        return self.network.dtype == torch.bfloat16 and not computes_bf16()

    def ready(self, function: Callable[..., Tensor], widths: Sequence[int]) -> Callable[..., Tensor]:
        """In our kernels; with a warning as it is where it cannot be captured."""
        like = next(self.network.parameters())[..., :0]
        try:
            with torch.inference_mode():
                return captured_function(function, widths, like, self.lowering, self.packed)
        except Exception as error:  # whatever its modules raise when they are captured
            warnings.warn(
                f"a draft's heads cannot be captured: {first_line(error)}; they run eagerly, which is slower",
                stacklevel=2,
            )
            return function

    def steps_of_rows(self, rows: int) -> CapturedSteps:
        """The step in parts, some of them torch's: where these are slow, one row after the other is faster."""
        if self.torch_is_slow:
            self.require_batches(rows)
            steps = (RowByRow if rows > 1 else CapturedSteps)(self.program, self.program)
        else:
            steps = super().steps_of_rows(rows)
        steps.most_of_prompt = PROMPT_ROWS if self.reads_prompts else None
        return steps

    @property
    def reads_at_once(self) -> bool:
        """See `BatchableModel`: where a step is one program, whose parts may be of any sequences."""
        return all(isinstance(step.run, WholeStep) for step in (self.program.one, self.program.several))

    @torch.inference_mode()
    def read_at_once(self, reads: Sequence[Read]) -> list[Tensor]:
        """See `BatchableModel`."""
        step = self.program.several if any(len(read.tokens) > 1 for read in reads) else self.program.one
        calls = [cast(NativeSession, session).due(step, tokens, parents) for session, tokens, parents in reads]
        found = run_at_once(calls)
        for (session, tokens, parents), logits_LV in zip(reads, found, strict=True):
            cast(NativeSession, session).has_read(logits_LV, tokens, parents)
        return found

    def chooses(self, choice: Choice) -> bool:
        """Whether the kernels choose tokens by `choice`: a step is one program with all logits; they have no min-p."""
        runs = [step.run for step in (self.program.one, self.program.several)]
        fits = all(isinstance(run, WholeStep) and run.run.widths[0] >= choice.vocabulary_size for run in runs)
        return fits and choice.sampling.min_p is None

    def passes(self, session: Session, draft: Session | None, plan: PassPlan, tokens: list[int]) -> NativePasses | None:
        """See `Model.passes`."""
        usual = self.lookups.pace.tokens
        if not (isinstance(session, NativeSession) and session.passes_in_calls(plan.choosing, plan.end, usual)):
            return None
        if draft is None:
            return NativePasses(session, None, plan, tokens, self.lookups.pace, self.eos_ids)
        if not (isinstance(draft, NativeSession) and draft.passes_in_calls(plan.drafting, plan.end, usual)):
            return None
        kinds = {(choice.draws, choice.vocabulary_size) for choice in (plan.drafting, plan.choosing)}
        if draft.model is self or draft.model.eos_ids != self.eos_ids or len(kinds) > 1:
            return None
        return NativePasses(session, draft, plan, tokens, self.lookups.pace, self.eos_ids)


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
        """As `StaticSession`; the usual run in fewer lines.

        A step's weights push what Python uses out of the processor's caches, so that each line costs a multiple here.
        """
        count, model = len(tokens), self.model
        step = model.program.one if count == 1 else model.program.several
        plain = parents is None and not self._tree.parents and self.ahead_part is None and not model.state_width
        plain = plain and model.rows <= count <= PROMPT_ROWS
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
        """As `StaticSession`; a long text in parts where our kernels read it, so that these need less room."""
        most = super()._most_at_once(count, in_tree, last_row)
        return most if in_tree or (last_row and not self.model.reads_prompts) else min(most, PROMPT_ROWS)

    def _ends_with_prompt(self, count: int) -> bool:
        run = self.model.program.last.run
        return not self.model.reads_prompts and isinstance(run, LoweredPrompt) and not run.is_native_for(count)

    def _step(self, step: Step, tokens: Tokens, rows: int) -> Tensor:
        if not isinstance(step.run, WholeStep) or isinstance(tokens, Tensor) or rows != len(tokens):
            return super()._step(step, tokens, rows)
        call = self._call_on(step, tokens)
        results = step.run.run.results(1, rows)
        call.run(results)
        return results[0][0]

    def due(self, step: Step, tokens: Tokens, parents: Sequence[int] | None) -> Call:
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

    def _call_on(self, step: Step, tokens: Sequence[int]) -> Call:
        """The call of `step` over `tokens` after `length`, or over these newest nodes."""
        assert isinstance(step.run, WholeStep)
        require_readable(tokens, self.model.readable)
        call = self._call(step, len(tokens))
        if call.tokens is None:
            call.tokens = (ctypes.c_int64 * len(tokens))()
        call.addresses[call.ids] = ctypes.addressof(call.tokens)
        call.tokens[:] = tokens
        return call

    def _call(self, step: Step, count: int, number: int = 0) -> Call:
        """Call `number` of `step` over `count` tokens after `length`; the address of its tokens is still to be set."""
        calls, numbers = self._calls_of(step, count)
        while number >= len(calls):
            calls.append(calls[0].again())
        call = calls[number]
        call.place(self._placed_now(step, count, numbers))
        return call

    def _calls_of(self, step: Step, count: int) -> tuple[list[Call], list[int]]:
        """The calls of `step` over `count` tokens, and which of its inputs are placed."""
        found = self._calls.get((id(step), count))
        if found is None:
            found = self._calls[id(step), count] = self._first_call(step, count)
        return found

    def _first_call(self, step: Step, count: int) -> tuple[list[Call], list[int]]:
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
        """What a call of `step` over the newest `count` tokens or nodes looks up: its inputs of these numbers."""
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

    def passes_in_calls(self, choice: Choice, end: int, usual: int) -> bool:
        """Whether passes up to `end` tokens can run in calls; then it has room for `usual` tokens.

        Where buffers grow within a completion, Python takes as long as two steps of a small model. `usual` are those of
        the longest completion so far. One that ends earlier gets as much: attention looks through all slots, of which
        128 more take 2% of a small model's step, so that parts of completions would be timed too short.
        """
        if not (self.in_a_row and self.model.chooses(choice) and end <= (self.model.longest or end)):
            return False
        self._make_room(min(usual, self.model.longest or usual))
        return True

    def reader(self, choice: Choice, most: int, needed: int) -> Reader:
        """What reads up to `most` tokens at once in passes, with room for `needed` tokens in all."""
        self.drop_ahead()
        self._make_room(needed)
        key = choice, most, self.model.eos_ids
        found = self._readers.get(key)
        if found is None:
            found = self._readers[key] = Reader(*key)
        return found

    def step_at(self, length: int, count: int) -> tuple[Call, Places]:
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

    @property
    def capacity(self) -> int:
        """Tokens that its buffers have room for."""
        return self._capacity

    def rollout(
        self, tokens: Sequence[int], choice: Choice, steps: int, uniform_G: Tensor | None
    ) -> tuple[list[int], Tensor | None] | None:
        """See `Session.rollout`; a text that ends has no tokens after its end."""
        model, end = self.model, self.length + len(tokens) + steps - 1
        # Where a draft reads its states, these are to be kept.
        if not model.chooses(choice) or model.state_width or end > (model.longest or end) or self._tree:
            return None
        rollout = self._rollout(tokens, choice, steps)
        chosen, rows_GV = rollout(uniform_G)
        self.length = end - steps + len(chosen)
        return chosen, rows_GV

    def _rollout(self, tokens: Sequence[int], choice: Choice, steps: int) -> Rollout:
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
        self, tokens: Sequence[int], choice: Choice, steps: int, uniform_G: Tensor | None
    ) -> tuple[list[int], Tensor | None] | None:
        began = self.length
        found = super().rollout(tokens, choice, steps, uniform_G)
        if found is not None:
            self.text[began:] = [*tokens, *found[0]][: self.length - began]
        return found
