"""A captured step over preallocated caches: the same tokens as `eager`, without the model's Python."""

import ctypes
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from specbench.engine.batch_steps import CapturedSteps, RowByRow
from specbench.engine.buffers import CACHED_BYTES, CACHED_OF_TREES, MOST_STACKED, BufferPool, TensorCache, size_of
from specbench.engine.capture.cache import forget
from specbench.engine.capture.invariant import lower_invariant
from specbench.engine.capture.lower import Lowering, PackedWeights, compiled, lower
from specbench.engine.capture.program import Program, Step, captured_function, rows_agree
from specbench.engine.capture.static_sessions import MOST_ROWS, StaticSession, WindowedStatic
from specbench.engine.capture.torch_private import computes_bf16
from specbench.engine.eager.model import EagerModel
from specbench.engine.experts import Experts
from specbench.engine.native.passes import NativePasses, Reader
from specbench.engine.native.segments import (
    Call,
    LoweredPrompt,
    Placed,
    Places,
    Rollout,
    WholeStep,
    lower_native,
    lower_native_invariant,
    run_at_once,
)
from specbench.engine.session import PassPlan, Prompt, Read, Session, Tokens
from specbench.errors import UserError, first_line
from specbench.sampling import Choice

FIRST_CAPACITY = 64
SOURCE_STEP = 16  # cross-attention buffers come in multiples of this
# Filled up: there a step is bound by reading weights, and one shape means one choice of kernels.
ROWS_ON_A_GPU = MOST_ROWS
PROMPT_ROWS = 128  # tokens of a prompt that our kernels read at once where torch's are slow
MOST_ADDRESSES = 4096  # of looked-up positions that are held
MOST_CALLS = 512  # of other sizes that are held
USUAL_COUNTS = range(1, 9)  # tokens of one run whose positions are looked up in advance


class StaticModel(EagerModel):
    """An `EagerModel` whose sessions run a captured step."""

    engine = "static"
    lowering: Lowering = staticmethod(lower)
    invariant_lowering: Lowering = staticmethod(lower_invariant)
    prompt_lowering: Lowering = staticmethod(lower)
    most_rows: int | None = MOST_ROWS  # of one invariant step; longer blocks are read in parts
    rows: int  # the fewest that a step reads; what is missing is filled up
    grows_in_place = True

    def __init__(
        self,
        network: Any,
        vocabulary_size: int,
        eos_ids: frozenset[int],
        packed: PackedWeights | None = None,
        invariant: bool = False,
    ) -> None:
        """`invariant`: with kernels whose rows do not depend on how many are read at once."""
        super().__init__(network, vocabulary_size, eos_ids)
        began = time.perf_counter()
        self.packed, self.invariant = packed or PackedWeights(), invariant
        self.rows = ROWS_ON_A_GPU if invariant and self.device.type != "cpu" else 1
        lowering = self.invariant_lowering if invariant else self.lowering
        self.program = Program.of(
            network, self._cache_dtype(network), lowering, self.packed, of_prompt=self.prompt_lowering
        )
        self.placement = self.program.placement
        if self.engine not in ("compile", "cudagraph"):  # whose runs are none of Python's
            self.experts = Experts.of(network, self.packed.reads)
        self.pool = BufferPool(self.program.shapes, self.program.cache_dtype, self.device)
        self.sources, self.positions, self.tree_positions = TensorCache(), TensorCache(), TensorCache(CACHED_OF_TREES)
        self._numbers: dict[int, Tensor] = {}
        self._single: dict[int, Tensor] = {}
        self._prepare()
        self.warmup_s = time.perf_counter() - began

    def _prepare(self) -> None:
        with torch.inference_mode():
            StaticSession(self, Prompt((0,) if self.is_encoder_decoder else (), (0,))).look_up(USUAL_COUNTS)

    def _same_engine(self, network: Any) -> "StaticModel":
        made = type(self)(network, self.vocabulary_size, self.eos_ids, self.packed, self.invariant)
        made.rows = self.rows
        return made

    def weights_changed(self) -> None:
        self.packed.refresh()
        for model in self._shallow.values():
            model.weights_changed()
        if self.program.encode is not None:
            self.program.encode.biases_of_size.clear()
        self._forget_placed()

    def _forget_placed(self) -> None:
        """Drop cached masks, positions and position biases, and compute those of usual sizes again."""
        for cache in (self.sources, self.positions, self.tree_positions):
            cache.clear()
        self._prepare()

    def set_least_rows(self, rows: int) -> None:
        """From now on a step reads at least so many rows; missing rows are padding."""
        if rows != self.rows:
            self.rows = rows
            self._forget_placed()

    def steps_of_rows(self, rows: int) -> CapturedSteps:
        self.require_batches(rows)
        return CapturedSteps(self.program, self.program if rows == 1 else self._program_of_rows)

    @cached_property
    def _program_of_rows(self) -> Program:
        """Raises UserError where its logits are not those of single rows."""
        for _ in range(2):
            made = Program.of(self.network, self.program.cache_dtype, self.lowering, self.packed, one_row=False)
            if self.engine == "compile":  # which would compile for the shapes that are tried, in minutes
                return made
            if rows_agree(self.program, made, self.vocabulary_size, self.network.dtype, self.device):
                return made
            if made.cached is None:
                break
            forget(made.cached)  # a capture that is made now may be right
        raise UserError(
            f"engine={self.engine}: the compiled step of several prompts differs from that of one; use batch=1 or "
            "engine=eager"
        )

    @staticmethod
    def _cache_dtype(network: Any) -> torch.dtype:
        """On CPU attention over bf16 is slower than over fp32, which also is the more exact; see kernels.attend."""
        dtype: torch.dtype = network.dtype
        return torch.promote_types(dtype, torch.float32) if network.device.type == "cpu" else dtype

    def start(self, prompt: Prompt) -> StaticSession:
        return StaticSession(self, prompt) if self.window is None else WindowedStatic(self, prompt, self.window)

    def capacity(self, needed: int) -> int:
        """Slots of self-attention buffers with room for `needed` tokens: the next power of two, or of many 1/8 more."""
        if needed > MOST_STACKED and self.grows_in_place:
            step = 1 << (needed.bit_length() - 4)
            return -(-needed // step) * step
        return max(FIRST_CAPACITY, 1 << (needed - 1).bit_length())

    def source_slots(self, needed: int) -> int:
        """Slots of cross-attention buffers for a source of `needed` tokens."""
        return -(-needed // SOURCE_STEP) * SOURCE_STEP

    def number(self, value: int) -> Tensor:
        """`value` as a tensor [1]; the same tensor at every call."""
        if value not in self._single:
            self._single[value] = torch.tensor([value], device=self.device)
        return self._single[value]

    def numbers(self, slots: int) -> Tensor:
        """0 ... `slots` - 1, as one row [1, `slots`]; the same tensor at every call."""
        if slots not in self._numbers:
            self._numbers[slots] = torch.arange(slots, device=self.device).unsqueeze(0)
        return self._numbers[slots]


class CompiledModel(StaticModel):
    """A `StaticModel` whose steps torch.compile makes ready. Needs a C++ compiler, and a minute or so in all."""

    engine = "compile"
    lowering: Lowering = staticmethod(compiled)


class NativeModel(StaticModel):
    """A `StaticModel` whose steps run in kernels of ours, compiled on this machine. Needs a C compiler."""

    engine = "native"
    lowering: Lowering = staticmethod(lower_native)
    invariant_lowering: Lowering = staticmethod(lower_native_invariant)
    prompt_lowering: Lowering = LoweredPrompt
    most_rows: int | None = None

    @cached_property
    def _addresses(self) -> dict[int, tuple[tuple[Tensor, ...], Placed]]:
        return {}

    @cached_property
    def first_calls(self) -> dict[tuple[int, ...], tuple[Call, list[int]]]:
        """A call by step, tokens, and slots of the text and the source, and which of its inputs are placed."""
        return {}

    @cached_property
    def _blank(self) -> dict[int, Tensor]:
        return {}

    def blank(self, count: int) -> Tensor:
        """Any `count` tokens [1, L], the same tensor at every call."""
        if count not in self._blank:
            self._blank[count] = self.ids([0] * count)
        return self._blank[count]

    @cached_property
    def places(self) -> dict[tuple[int, ...], Places]:
        """The same by step, tokens and slots, as passes in one call find them."""
        return {}

    @cached_property
    def placed(self) -> dict[tuple[int, ...], Placed]:
        """The same of chains, by step, tokens, slots and length: a session finds them in one look."""
        return {}

    def start(self, prompt: Prompt) -> "NativeSession":
        return NativeSession(self, prompt) if self.window is None else WindowedNative(self, prompt, self.window)

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
        if not self.torch_is_slow:
            return super().steps_of_rows(rows)
        self.require_batches(rows)
        steps = (RowByRow if rows > 1 else CapturedSteps)(self.program, self.program)
        steps.most_of_prompt = PROMPT_ROWS
        return steps

    @property
    def reads_at_once(self) -> bool:
        """See `ReadsAtOnce`: where a step is one program, whose parts may be of any sequences."""
        return all(isinstance(step.run, WholeStep) for step in (self.program.one, self.program.several))

    @torch.inference_mode()
    def read_at_once(self, reads: Sequence[Read]) -> list[Tensor]:
        """See `ReadsAtOnce`."""
        step = self.program.several if any(len(read.tokens) > 1 for read in reads) else self.program.one
        calls = [cast(NativeSession, session).due(step, tokens, parents) for session, tokens, parents in reads]
        found = run_at_once(calls)
        for (session, tokens, parents), logits_LV in zip(reads, found, strict=True):
            cast(NativeSession, session).has_read(logits_LV, tokens, parents)
        return found

    def expect_rollouts(self, choice: Choice, steps: Sequence[int]) -> None:
        """See `RollsOut`: nothing is captured for one."""

    def chooses(self, choice: Choice) -> bool:
        """See `ChoosesTokens`: where a step is one program. The kernels have no min-p."""
        return choice.sampling.min_p is None and self.reads_at_once

    def passes(self, session: Session, draft: Session, plan: PassPlan, tokens: list[int]) -> NativePasses | None:
        """See `RunsPasses`."""
        if not (isinstance(session, NativeSession) and isinstance(draft, NativeSession)) or draft.model is self:
            return None
        readers = []
        for one, choice, most in ((session, plan.choosing, plan.gamma + 1), (draft, plan.drafting, max(2, plan.gamma))):
            longest = one.model.longest
            if not (one.in_a_row and one.model.chooses(choice)) or plan.end > (longest or plan.end):
                return None
            readers.append(Reader(one, choice, most, self.eos_ids))
        return None if draft.model.eos_ids != self.eos_ids else NativePasses(*readers, plan, tokens)

    def addresses_of(self, run: WholeStep, looked_up: tuple[Tensor, ...], numbers: Sequence[int]) -> Placed:
        """The addresses of tensors that a session has looked up, which are inputs of these numbers."""
        found = self._addresses.get(id(looked_up))
        if found is None or found[0] is not looked_up:
            # An entry holds its tensors, also once the cache that they come from has dropped them.
            if len(self._addresses) >= min(MOST_ADDRESSES, CACHED_BYTES // (size_of(looked_up) + 1)):
                self._addresses.clear()
                self.placed.clear()
                self.places.clear()
            placed = run.placed(dict(zip(numbers, looked_up, strict=True)))
            found = self._addresses[id(looked_up)] = looked_up, placed
        return found[1]


class NativeSession(StaticSession):
    """A static session whose model can run several steps in one call, each on the token chosen in the step before."""

    model: NativeModel
    batch: object = None  # that it is a row of
    in_a_row = True  # slots are in the order of the text, none left out

    def _collect(self) -> None:
        super()._collect()
        # The calls of a step over a number of tokens (several for a rollout), and which of its inputs are looked up.
        self._calls: dict[tuple[int, int], tuple[list[Call], list[int]]] = {}
        self._rollouts: dict[tuple[int, int], Rollout] = {}

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        """As `StaticSession`; the usual run in fewer lines.

        A step's weights push what Python uses out of the processor's caches, so that each line costs a multiple here.
        """
        count, model = len(tokens), self.model
        step = model.program.one if count == 1 else model.program.several
        plain = parents is None and not self._tree.parents and self.ahead_part is None and not model.state_width
        if not (plain and model.rows <= count and isinstance(step.run, WholeStep)) or isinstance(tokens, Tensor):
            return super().extend(tokens, parents)
        self._make_room(self.length + count)
        call = self._call_on(step, tokens)
        logits_LV = torch.empty(count, call.program.widths[0], dtype=call.program.dtype)
        call.run((logits_LV,))
        self.length += count
        return logits_LV

    def _release(self) -> None:
        super()._release()
        self._calls, self._rollouts = {}, {}

    def _run(self, tokens: Tokens, parents: Sequence[int] | None = None, last_row: bool = False) -> Tensor:
        """As `StaticSession`; where torch is slow a long prompt in parts, so that our kernels need less room."""
        if not (last_row and self.model.torch_is_slow):
            return super()._run(tokens, parents, last_row)
        for first in range(0, len(tokens), PROMPT_ROWS):
            logits_1V = super()._run(tokens[first : first + PROMPT_ROWS], None, last_row)
        return logits_1V

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
        call = self._call(step, len(tokens))
        if call.tokens is None:
            call.tokens = (ctypes.c_int64 * len(tokens))()
        call.addresses[call.ids] = ctypes.addressof(call.tokens)
        call.tokens[:] = tokens
        return call

    def _call(self, step: Step, count: int, number: int = 0) -> Call:
        """Call `number` of `step` over `count` tokens after `length`; the address of its tokens is still to be set."""
        assert isinstance(step.run, WholeStep)
        found = self._calls.get((id(step), count))
        if found is None:
            found = self._calls[id(step), count] = self._first_call(step, count)
        calls, numbers = found
        while number >= len(calls):
            calls.append(calls[0].again())
        call = calls[number]
        call.place(self._placed_now(step, count, numbers))
        return call

    def _first_call(self, step: Step, count: int) -> tuple[list[Call], list[int]]:
        """A call over this session's buffers, and which of its inputs are placed.

        It is made after an earlier session's: to look up each of its tensors would take as long as to read a few tokens.
        """
        assert isinstance(step.run, WholeStep)
        ids_1L = self.model.blank(count)
        with torch.inference_mode():
            of_source = self._of_source(step, ids_1L, count)
        own, known = [self._source_length_1, *self._buffers, *of_source], self.model.first_calls
        slots = self._held["cross"].slots if "cross" in self._held else 0
        made = known.get(key := (id(step), count, self._capacity, slots))
        if made is None:
            with torch.inference_mode():
                inputs = self.inputs(step, ids_1L, count)
            numbers = [1, 2, 3, *range(4 + len(own), len(inputs))]
            if len(known) >= MOST_CALLS:
                known.clear()
            made = known[key] = step.run.call(inputs, numbers), numbers
            made[0].held = []  # the session's, which may be freed before
        call = made[0].again()
        step.run.read(call, dict(enumerate(own, 4)))
        return [call], made[1]

    def _placed_now(self, step: Step, count: int, numbers: Sequence[int]) -> Placed:
        """What a call of `step` over the newest `count` tokens or nodes looks up: its inputs of these numbers."""
        placed, key = self.model.placed, (id(step), count, self._capacity, self.length)
        is_known_by_length = self.in_a_row and not self._tree.parents
        if is_known_by_length and (known := placed.get(key)) is not None:
            return known

        def computed() -> tuple[Tensor, ...]:
            ids_1L = self.model.blank(count)
            with torch.inference_mode():
                return self._placed(step, ids_1L, count, self._of_source(step, ids_1L, count))

        assert isinstance(step.run, WholeStep)
        looked_up = self._looked_up((id(step), count), count, computed)
        found = self.model.addresses_of(step.run, looked_up, numbers)
        if is_known_by_length:
            placed[key] = found
        return found

    def ready(self, needed: int) -> object:
        """Make room for `needed` tokens; what is returned changes when calls are no longer valid."""
        self.drop_ahead()
        self._make_room(needed)
        return self._calls

    def step_at(self, length: int, count: int) -> tuple[Call, Places]:
        """The call over `count` tokens after `length`, and what it reads there and after other lengths."""
        program, began, slots, places = self.model.program, self.length, self._capacity, self.model.places
        step, self.length = program.one if count == 1 else program.several, length
        call, key = self._call(step, count), (id(step), count, slots)
        assert call.placed is not None
        if key not in places:
            places[key] = Places(slots)
            if slots == FIRST_CAPACITY:  # all at once, so that no later pass pays
                numbers, last = self._calls[key[:2]][1], min(slots, self.model.longest or slots) - count
                for self.length in range(last + 1):
                    places[key].put(self.length, self._placed_now(step, count, numbers))
        places[key].put(length, call.placed)
        self.length = began
        return call, places[key]

    @property
    def capacity(self) -> int:
        """Tokens that its buffers have room for."""
        return self._capacity

    def rollout(
        self, tokens: Sequence[int], choice: Choice, steps: int, uniform_G: Tensor | None
    ) -> tuple[list[int], Tensor | None] | None:
        """See `RolloutSession`; a text that ends has no tokens after its end."""
        model, end = self.model, self.length + len(tokens) + steps - 1
        # Where a draft reads its states, these are to be kept.
        if not model.chooses(choice) or model.state_width or end > (model.longest or end) or self._tree:
            return None
        rollout = self._rollout(tokens, choice, steps)
        chosen, rows_GV = rollout(uniform_G)
        self.length = end - steps + len(chosen)
        return chosen, rows_GV

    def choose(
        self, tokens: Sequence[int], choice: Choice, steps: int, uniform_G: Tensor | None
    ) -> tuple[list[int], list[float]]:
        """See `ChoosingSession`."""
        end = self.length + len(tokens) + steps - 1
        rollout = self._rollout(tokens, choice, steps)
        chosen, _ = rollout(uniform_G, keeps_rows=False)
        self.length = end - steps + len(chosen)
        return chosen, rollout.known_s(len(chosen))

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
        rollout = self._rollouts.get((count, steps))
        if rollout is None or rollout.choice != choice:
            assert isinstance(one.run, WholeStep)
            rollout = self._rollouts[count, steps] = Rollout(calls, one.run.ids, choice, self.model.eos_ids)
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
