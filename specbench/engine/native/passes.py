"""Passes of Algorithm 1 in one call: gamma steps of the draft, the target's run, and the verdict, several times over.

Between the passes of a small model Python would take a quarter of the time: the weights push its data out of the
processor's caches.
"""

import ctypes
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.engine.native.native_run import BoundCall, Places, lines
from specbench.engine.session import MOST_UNREAD, DonePass, PassPlan, require_readable
from specbench.kernels import library
from specbench.kernels.structures import RawChoice, RawPass, RawPasses, RawReader, RawSampling
from specbench.sampling import NOT_FINITE, DrawnNumbers, TokenChoice, uniforms

MOST_PASSES = 256  # of a call
MOST_DRAWN = 8  # passes whose random numbers are drawn at once: those after an end would be in vain


class Pace:
    """The pace of a model's completions: the passes of a call, and the length of the longest completion so far.

    A call has as many as take 50 ms, for which Ctrl-C waits, but at least two.
    """

    PATIENCE_S, MOST_TOKENS = 0.05, 256

    def __init__(self) -> None:
        self.passes, self.tokens = 2, 0

    def note(self, passes: int, seconds: float, tokens: int) -> None:
        """So many passes, up to so many tokens of the text, took so long."""
        self.tokens = max(self.tokens, min(tokens, self.MOST_TOKENS))
        self.passes = max(2, min(MOST_PASSES, int(self.PATIENCE_S * passes / seconds)))


class ReadingSession(Protocol):
    """A session whose steps are programs."""

    length: int

    @property
    def capacity(self) -> int: ...

    def reader(self, choice: TokenChoice, most: int, needed: int) -> "Reader": ...

    def step_at(self, length: int, count: int) -> tuple[BoundCall, Places]: ...

    def hold_states(self, logits: int, rows: int, end: int) -> None: ...


class PassNumbers(NamedTuple):
    """The random numbers of P passes: of G drafted tokens, of their tests, and of N draws after them.

    None of the first if a draft is greedy, and none of the second if the rule draws at each place (N = G + 1).
    """

    uniform_PG: Tensor
    trial_PG: Tensor
    next_PN: Tensor


def _done(one: RawPass, drafted: list[int], emitted: list[int]) -> DonePass:
    return DonePass(
        drafted, range(one.accepted), emitted, one.drafted_s, one.verified_s, one.over_s,
        draft_ran_s=one.draft_ran_s, target_ran_s=one.target_ran_s,
    )  # fmt: skip


class Reader:
    """One of the two models: its steps over up to `most` tokens, and how a token is chosen from its logits."""

    def __init__(self, choice: TokenChoice, most: int, eos_ids: frozenset[int]) -> None:
        self.most = most
        self._held: dict[int, tuple[BoundCall, Places]] = {}  # by number of tokens: the owners of the addresses
        self._ends = (ctypes.c_int64 * len(eos_ids))(*sorted(eos_ids))
        self._steps, self._tables = (ctypes.c_void_p * (most + 1))(), (ctypes.c_void_p * (most + 1))()
        self.raw = RawReader(ctypes.addressof(self._steps), ctypes.addressof(self._tables), most)
        self.raw.choice = RawChoice(
            vocabulary=choice.vocabulary_size, ends=ctypes.addressof(self._ends), end_count=len(self._ends),
            how=RawSampling.of(choice.sampling.temperature, choice.sampling.top_k, choice.sampling.top_p),
        )  # fmt: skip
        self.scratch = self.shared = 0  # floats that each thread needs, and that all share

    def begin(self, session: ReadingSession, rows_GV: Tensor | None) -> None:
        """Continue from `session`; `rows_GV` receives the probabilities, None at T = 0."""
        self.raw.length, self.raw.capacity, self.raw.ran_s = session.length, session.capacity, 0.0
        self.raw.choice.rows = None if rows_GV is None else rows_GV.data_ptr()

    def add(self, session: ReadingSession, length: int, count: int) -> None:
        """Make the step of `session` over `count` tokens after the first `length` ready."""
        if count in self._held and self._held[count][1].addresses[length]:
            return
        if count > self.most:
            raise ValueError(f"a step of a pass reads {self.most} tokens at most, not {count}")
        self._held[count] = call, places = session.step_at(length, count)
        self._steps[count], self._tables[count] = ctypes.addressof(call.step), ctypes.addressof(places.addresses)
        self.scratch, self.shared = max(self.scratch, call.scratch), max(self.shared, call.shared)

    def lend(self, floats_of_threads: int) -> int:
        """Lend its steps room for values and logits; returns the address of as much more for the threads."""
        runs = [call.program for call, _ in self._held.values()]
        arena, width = lines(self.most * max(run.floats for run in runs)), runs[0].widths[0]
        start, room = runs[0].room(arena + lines(self.most * width), floats_of_threads)
        self.raw.arena, self.raw.logits = start, start + 4 * arena
        choice = self.raw.choice
        choice.logits, choice.stride, choice.short_floats = self.raw.logits, width, runs[0].dtype == torch.bfloat16
        return room


class NativePasses:
    """Passes over one text in calls of the kernels: `PassesInCalls`."""

    def __init__(
        self, target: ReadingSession, draft: ReadingSession | None, plan: PassPlan, tokens: Sequence[int], pace: Pace,
        eos_ids: frozenset[int],
    ) -> None:  # fmt: skip
        self._target, self._draft, self._plan, self._pace, self._eos_ids = target, draft, plan, pace, eos_ids
        gamma = plan.gamma
        self.most = min(pace.passes, plan.end - len(tokens))
        self._text = (ctypes.c_int64 * (plan.end + gamma + 1))(*tokens)
        self._done, self._drafted = (RawPass * self.most)(), (ctypes.c_int64 * (self.most * gamma + 1))()
        self._best = (ctypes.c_int64 * (gamma + 1))()
        self._given = Reader(plan.drafting, 0, frozenset())  # stands in for a draft model in `verify`: only q
        size = plan.choosing.vocabulary_size
        # Rows of p, a row for the residual, and rows of q.
        self._rows_GV = torch.empty(2 * gamma + 2, size) if plan.choosing.draws else None
        self._raw = RawPasses(
            ctypes.addressof(self._text), len(tokens), plan.end, gamma, 0, -1, plan.rule.raw(), None, None, plan.least,
            None if self._rows_GV is None else self._rows_GV[-1].data_ptr(),
            *[ctypes.addressof(one) for one in (self._best, self._done, self._drafted)],
        )  # fmt: skip

    def run(self, length: int, generator: torch.Generator) -> list[DonePass]:
        """Run the next passes after `length` tokens, at least one."""
        if not self._plan.choosing.draws:
            return self._several(length, None, self.most)
        numbers = self._numbers(self._plan.end - length, generator)
        return self._several(length, numbers, len(numbers.next_PN))

    def _numbers(self, left: int, generator: torch.Generator) -> PassNumbers:
        """Random numbers of the next passes, with `left` tokens to the end, in the order of draws in single passes."""
        gamma, device, drawn = self._plan.gamma, generator.device, []
        if gamma == 0:
            next_P = uniforms(min(self.most, left), generator, device)
            none_P0 = next_P.new_empty(len(next_P), 0)
            return PassNumbers(none_P0, none_P0, next_P.unsqueeze(-1))
        for _ in range(min(self.most, MOST_DRAWN, left // (gamma + 1)) or 1):
            size = min(gamma, left - 1)  # less than gamma in a call's only pass
            uniform_G = uniforms(size if self._plan.drafting.draws else 0, generator, device)
            after = DrawnNumbers.of(size, generator, device, self._plan.rule.draws_at_each)
            drawn.append((uniform_G, after.trials_G, after.next_1))
        return PassNumbers(*map(torch.stack, zip(*drawn, strict=True)))

    def _several(self, length: int, numbers: PassNumbers | None, most: int) -> list[DonePass]:
        """Up to `most` passes after `length` tokens, in as many calls as they take."""
        found: list[DonePass] = []
        while len(found) < most and length < self._plan.end:
            later = None if numbers is None else PassNumbers(*(each[len(found) :] for each in numbers))
            more = self._call(length, later, most - len(found))
            found += more
            length += sum(len(one.emitted) for one in more)
            if more[-1].emitted[-1] in self._eos_ids:
                break
        return found

    def _call(self, length: int, numbers: PassNumbers | None, most: int) -> list[DonePass]:
        """Up to `most` passes in one call; fewer if the next reads at a place that has not been looked up yet."""
        began, raw, plan, rows_GV = time.perf_counter(), self._raw, self._plan, self._rows_GV
        size, gamma = min(plan.gamma, plan.end - length - 1), plan.gamma
        target = self._target.reader(plan.choosing, gamma + 1, length + size)
        target.begin(self._target, rows_GV)
        draft = target  # at gamma 0, which does not use it
        if self._draft is not None:
            # A draft has two unread tokens after a pass in which all of its own were accepted.
            draft = self._draft.reader(plan.drafting, max(2, gamma), length + size)
            draft.begin(self._draft, rows_GV[gamma + 1 :] if rows_GV is not None and plan.drafting.draws else None)
        raw.length, raw.most = length, min(most, self.most)
        if numbers is not None:
            draft.raw.choice.uniforms, raw.trials, raw.nexts = (each.data_ptr() or None for each in numbers)
        count = self._run(draft, target, length, size)
        if self._draft is not None:
            self._draft.length = draft.raw.length
        self._pace.note(count, self._done[count - 1].over_s - began, target.raw.length)
        found = []
        for number, one in enumerate(self._done[:count]):
            end = length + one.emitted
            drafted, emitted = self._drafted[number * gamma : number * gamma + one.drafted], self._text[length:end]
            found.append(_done(one, drafted, emitted))
            length = end
        return found

    def verify(
        self, tokens: list[int], drafted: list[int], q_GV: Tensor | None, asked: int, generator: torch.Generator
    ) -> DonePass:
        """Verify the tokens `drafted` after `tokens`, in one call."""
        raw, plan, rows_GV, length, size = self._raw, self._plan, self._rows_GV, len(tokens), len(drafted)
        require_readable(drafted, plan.choosing.vocabulary_size)
        read = self._target.length
        # A cascade's middle model has two unread tokens after a pass in which all of its own were accepted.
        target, given = self._target.reader(plan.choosing, plan.gamma + MOST_UNREAD, length + size), self._given
        target.begin(self._target, rows_GV)
        given.raw.choice.rows = None if q_GV is None else q_GV.data_ptr()
        self._text[read : length + size] = [*tokens[read:], *drafted]
        raw.length, raw.most, raw.given = length, 1, size
        if plan.choosing.draws:
            drawn = DrawnNumbers.of(max(asked, size), generator, generator.device, plan.rule.draws_at_each)
            raw.trials, raw.nexts = drawn.trials_G.data_ptr(), drawn.next_1.data_ptr()
        try:
            self._run(given, target, length, size)
        finally:
            raw.given = -1
        self._target.hold_states(target.raw.logits, length + size - read, length + size)
        one = self._done[0]
        emitted = self._text[length : length + one.emitted]
        return _done(one, drafted, emitted)

    def p_rows(self, count: int) -> Tensor:
        """The first `count` of the target's rows of p in the last pass that was verified, at T > 0."""
        assert self._rows_GV is not None
        return self._rows_GV[:count].clone()

    def _run(self, draft: Reader, target: Reader, length: int, size: int) -> int:
        """Passes from `length` tokens on, and their number; the first drafts `size` tokens.

        Raises FloatingPointError if a row was not finite, and RuntimeError if no pass could run.
        """
        if (count := self._run_where_ready(draft, target)) == 0:
            target.add(self._target, self._target.length, length - self._target.length + size)
            if self._draft is not None and draft is not self._given and size:
                draft.add(self._draft, self._draft.length, length - self._draft.length)
                for place in range(length, length - 1 + size):
                    draft.add(self._draft, place, 1)
            count = self._run_where_ready(draft, target)
        if count < 0:
            raise FloatingPointError(NOT_FINITE)
        if count == 0:
            raise RuntimeError("no pass: a model has more unread tokens than a step of a pass reads")
        self._target.length = target.raw.length
        return count

    def _run_where_ready(self, draft: Reader, target: Reader) -> int:
        threads, size = torch.get_num_threads(), max(draft.scratch, target.scratch)
        if not target.scratch:
            return 0  # nothing is ready yet
        if draft.scratch and draft is not target:  # else it drafts nothing
            draft.lend(0)
        scratch = target.lend(size * threads + max(draft.shared, target.shared))
        read = (ctypes.byref(one) for one in (draft.raw, target.raw, self._raw))
        return int(library().speculate(*read, scratch, size, threads))
