"""Standard decoding and Algorithm 1, for single sequences and for batches.

A sequence is a generator. When it needs a model it yields a `Read` and receives the logits. When it needs a time stamp
it yields a `Moment` and receives a mark (`engine.time_marks`), whose time is read when the completion ends. So a
driver may answer at once (`speculative`), or keep the rows of a batch in lockstep, answer their reads in one run, and
give all rows the same time stamps (`algorithm.batching`).

What runs passes is chosen once, by `passes_of`: this module step by step (`Passes`), or the target's engine, which
verifies in one call (`VerifiedInCalls`) or runs whole passes (`WholeInCalls`). A sequence yields nothing within such a
call, and a `DonePass` is the same whoever ran it. Tests compare them token by token.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import RESIDUAL_EPSILON, Proposal, Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.verify import TargetRows, next_token, target_rows, verdict_on_host
from specbench.algorithm.draft import AnyProposal, Draft, DraftSession, read_of, require_base
from specbench.algorithm.gamma import Constant, Gamma
from specbench.engine.beginnings import PROMPTS
from specbench.engine.clock import RUNS
from specbench.engine.experts import Counting
from specbench.engine.reads import Read
from specbench.engine.session import DonePass, Model, PassesInCalls, PassPlan, Prompt, Session, up_to_end
from specbench.engine.time_marks import marking
from specbench.kernels.rows import ALGORITHM_1
from specbench.records.decoded import Pass, Trace
from specbench.records.passes_run import IN_C, IN_PYTHON, VERIFIED_IN_C
from specbench.sampling import Sampling, TokenChoice
from specbench.text.stops import Stops

NOTHING_DRAFTED = Constant(0)
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class DecodingSpec:
    """Everything that determines how prompts are decoded, resolved from the config once."""

    sampling: Sampling
    max_new_tokens: int
    verification: Verification
    gamma: Gamma = NOTHING_DRAFTED
    stops: Stops | None = None  # strings that end a completion

    @property
    def drafting(self) -> Sampling:
        """The sampling of the draft: the target's, or greedy if the rule requires a greedy draft."""
        return GREEDY if self.verification.traits.greedy_draft else self.sampling

    @classmethod
    def algorithm_1(cls, sampling: Sampling, max_new_tokens: int, gamma: int = 0) -> "DecodingSpec":
        """The paper's Algorithm 1 at a constant gamma."""
        return cls(sampling, max_new_tokens, Verification(accept_exact, sampling), Constant(gamma))


class Moment(Enum):
    """The event for which a sequence requests a time stamp."""

    READY = auto()  # the prompt has been read, and the first pass begins
    DRAFTED = auto()  # the tokens of a pass have been drafted
    VERIFIED = auto()  # the target has read them, and p is known at each, unless the verdict computes it on the device
    OVER = auto()  # a pass is over


Decoding = Generator[Read | Moment, Any, Trace]
READY, DRAFTED, VERIFIED, OVER = Moment.READY, Moment.DRAFTED, Moment.VERIFIED, Moment.OVER


class Text:
    """The tokens of one sequence, up to an end, a stop string or to `most` tokens after the prompt."""

    def __init__(self, prompt: Prompt, most: int, eos_ids: frozenset[int], stops: Stops | None = None) -> None:
        self.tokens, self.eos_ids, self.stops = list(prompt.prefix), eos_ids, stops
        self.first = len(self.tokens)
        self.end = self.first + most
        self._is_stopped = False

    @property
    def room(self) -> int:
        """Tokens that may still follow."""
        return self.end - len(self.tokens)

    @property
    def is_over(self) -> bool:
        count = len(self.tokens)
        return self._is_stopped or count >= self.end or (count > self.first and self.tokens[-1] in self.eos_ids)

    def up_to_end(self, block: list[int]) -> list[int]:
        """`block`, which follows, up to where it ends the text."""
        block = up_to_end(block, self.eos_ids)
        return block if self.stops is None else block[: self.stops.place(self.tokens[self.first :], block)]

    def add(self, block: list[int]) -> None:
        """Append `block`, which nothing follows after an end."""
        self._is_stopped = self.stops is not None and self.stops.place(self.tokens[self.first :], block) is not None
        self.tokens += block


def autoregress(target: Model, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Decoding:
    """Standard decoding: one target step per token; several steps in one call if the engine can."""
    target.get_ready(prompt, spec.max_new_tokens)
    began, counted = target.now(), PROMPTS.now()
    session = target.start(prompt)
    of_prompt = counted.to(PROMPTS.now())
    text = Text(prompt, spec.max_new_tokens, target.eos_ids, spec.stops)
    choice = TokenChoice(spec.sampling, target.vocabulary_size)
    in_calls = target.passes(session, None, PassPlan(0, text.end, choice, choice), text.tokens)
    start_s = target.now() - began
    counting = Counting(target.experts)
    marks = [(yield READY)]
    while not text.is_over:
        if in_calls is not None:
            for done in in_calls.run(len(text.tokens), generator):
                text.add(done.emitted)
                marks.append(done.over_at)
                if text.is_over:
                    break  # a string ended it, of which the call knows nothing
        else:
            counting.begin()
            logits_LV = yield Read(session, text.tokens[session.length :])
            counting.end()
            token = next_token(logits_LV, spec.sampling, target.vocabulary_size, generator, target.repeat)
            text.add([token])
            marks.append((yield OVER))
    steps_s = [after - before for before, after in pairwise(marks)]
    experts = [sum(layers) for layers in counting.counts() if layers is not None] or None
    return Trace(
        text.tokens[text.first :], start_s, marks[-1] - marks[0], steps_s, step_experts=experts,
        prompt_read=of_prompt.read, prompt_copied=of_prompt.copied,
    )  # fmt: skip


def speculate(target: Model, draft: Draft, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Decoding:
    """Algorithm 1: in each pass one target run verifies the tokens that `draft` proposes, by the rule of `spec`.

    A pass never drafts past `max_new_tokens`, and the completion ends at the first end-of-sequence token, also inside
    an accepted block.
    """
    draft.expect(spec.drafting, spec.gamma.picks)
    for model in (target, *draft.models):
        model.get_ready(prompt, spec.max_new_tokens)
    log, text = PassLog(target), Text(prompt, spec.max_new_tokens, target.eos_ids, spec.stops)
    session = target.start(prompt)
    log.target_started()
    drafting = draft.start_on(session, prompt, spec.drafting)
    passes = passes_of(target, session, drafting, spec, text)
    gamma = spec.gamma.start()
    log.ready()
    log.begin((yield READY))
    while not text.is_over:
        for done in (yield from passes.next(text.tokens, min(gamma.next(), text.room - 1), generator)):
            if spec.stops is not None:  # strings, of which the passes of a call know nothing
                done = done._replace(emitted=text.up_to_end(done.emitted))
            text.add(done.emitted)
            gamma.learn(len(done.drafted), len(done.path))
            log.passes.append(done)
            if text.is_over:
                break  # passes of a call go on after a string that ends the text
    return replace(log.trace(text), passes_run=passes.where)


class Passes:
    """Passes of Algorithm 1, one at a time: draft, verify, accept, roll back.

    A model is run by `yield`, so that a driver may answer the reads of a whole batch at once.
    """

    where = IN_PYTHON  # what a record says of it

    def __init__(
        self, target: Model, session: Session, drafting: DraftSession, verification: Verification,
        text: Text | None = None,
    ) -> None:  # fmt: skip
        """`session` is the target's and `drafting` the draft's, both of one text.

        `text`: where passes end; None: only at the target's end-of-sequence tokens.
        """
        self.text = text
        self.parts = target, session, drafting, verification
        self.target, self.session, self.drafting, self.verification = self.parts
        self.repeat, self.watched, self.counting = target.repeat, drafting.watches, Counting(target.experts)
        self._ran_before: float | None = None  # the clock of runs at the end of the last pass

    def next(self, tokens: list[int], gamma: int, generator: torch.Generator) -> "Passing":
        """The next pass after `tokens`, or the next few, which no read separates."""
        ran = RUNS.seconds if self._ran_before is None else self._ran_before
        # Draft x_1, ..., x_gamma ~ q.
        proposal = yield from self.drafting.proposing(tokens, gamma, generator)
        drafted_at, drafting_s = (yield DRAFTED), RUNS.seconds - ran
        done = yield from self.verify(tokens, proposal, generator)
        self._ran_before = RUNS.seconds  # before other rows of a batch draft
        return [done._replace(drafted_at=drafted_at, over_at=(yield OVER), draft_ran_s=drafting_s)]

    def verify(
        self, tokens: list[int], proposal: AnyProposal, generator: torch.Generator
    ) -> Generator[Read | Moment, Any, DonePass]:
        """Verify `proposal`, accept and roll back; the marks of drafting and of the end are still missing."""
        ran = RUNS.seconds
        # Verify: p at each of the draft tokens and after the last, in one run of the target.
        unread = tokens[self.session.length :]
        self.counting.begin()
        logits_LV = yield read_of(self.session, unread, proposal)
        experts = self.counting.end()
        p = self.rows(logits_LV, proposal)
        verified_at, verifying_s = (yield VERIFIED), RUNS.seconds - ran
        # Accept the first n of them, and draw the token that follows from the residual, or from p after the last.
        known, (path, token) = verdict_on_host(p, proposal, self.verification, generator, self.repeat)
        emitted = self.up_to_end([*(known.tokens[node] for node in path), token])
        # Roll back what was rejected.
        self.roll_back(len(tokens), len(unread), known, path, emitted, logits_LV)
        return DonePass(
            known.tokens, path, emitted, None, verified_at, None, known.operations, known.parents, experts,
            target_ran_s=verifying_s,
        )  # fmt: skip

    def up_to_end(self, block: list[int]) -> list[int]:
        """`block` up to where it ends the text."""
        return up_to_end(block, self.target.eos_ids) if self.text is None else self.text.up_to_end(block)

    def rows(self, logits_LV: Tensor, proposal: AnyProposal) -> TargetRows:
        """p at each token of `proposal` and after the last, from the logits of the target's run."""
        return target_rows(logits_LV, proposal, self.verification, self.target.vocabulary_size, self.repeat)

    def roll_back(
        self, before: int, unread: int, proposal: Proposal, path: Sequence[int], emitted: list[int],
        logits_LV: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Bring both sessions from `before` tokens, of which `unread` were read in the pass, to its end.

        Both keep all but the newest token, which neither has read, and drop tokens that were rejected or read beside.
        `logits_LV` are the logits of the target's run.
        """
        accepted, beside, drafting = path[: len(emitted) - 1], proposal.unverified, self.drafting
        length = before + len(emitted) - 1
        if self.watched and logits_LV is not None:
            rejected = len(emitted) == len(path) + 1 <= len(proposal.tokens)
            drafting.after_verification(before, logits_LV[unread - 1 :][: len(emitted)], rejected)
        if proposal.parents is not None or beside is not None:
            self.session.select([*range(unread), *(unread + node for node in accepted)])
        if proposal.parents is not None:
            drafting.select(accepted)
        if beside is not None and logits_LV is not None:
            drafting.after_unverified(logits_LV[unread + len(proposal.tokens) :], accepted)
        self.session.rollback(length)
        drafting.rollback(length)


Passing = Generator[Read | Moment, Any, list[DonePass]]


class VerifiedInCalls(Passes):
    """Passes that the target's engine verifies, accepts and rolls back in one call if a proposal is only a chain."""

    def __init__(self, step_by_step: Passes, calls: PassesInCalls, plan: PassPlan) -> None:
        super().__init__(*step_by_step.parts, step_by_step.text)
        self.calls, self.plan = calls, plan
        self._in_calls = self._beside = 0  # passes that a call verified, or none

    @property
    def where(self) -> str:  # type: ignore[override]
        """Where most of its passes were verified."""
        return VERIFIED_IN_C if self._in_calls >= self._beside else IN_PYTHON

    def verify(
        self, tokens: list[int], proposal: AnyProposal, generator: torch.Generator
    ) -> Generator[Read | Moment, Any, DonePass]:
        plan = self.plan
        if not (isinstance(proposal, Proposal) and proposal.is_plain(plan.gamma, plan.choosing.vocabulary_size)):
            self._beside += 1
            return (yield from super().verify(tokens, proposal, generator))
        self._in_calls += 1
        done = self.calls.verify(tokens, proposal.tokens, proposal.q_GV, proposal.asked, generator)
        done = done._replace(emitted=self.up_to_end(done.emitted))
        self.roll_back(len(tokens), 1, proposal, done.path, done.emitted)
        return done._replace(operations=proposal.operations)


class WholeInCalls(Passes):
    """Passes that the target's engine runs, several in one call, with the drafting of one model."""

    where = IN_C

    def __init__(self, step_by_step: Passes, calls: PassesInCalls) -> None:
        super().__init__(*step_by_step.parts)
        self.calls = calls

    def next(self, tokens: list[int], gamma: int, generator: torch.Generator) -> Passing:
        return self.calls.run(len(tokens), generator)
        yield


def passes_of(target: Model, session: Session, drafting: DraftSession, spec: DecodingSpec, text: Text) -> Passes:
    """The runner of the passes over `text`: the engine of the target as far as it can.

    It can by the rules that it has and with drafts that need no logits of the target's runs (its session holds the
    states, also after a call), and it drafts as well with one model at a constant gamma.
    """
    require_base(drafting, DraftSession, "draft")
    verification, gamma, size = spec.verification, spec.gamma, target.vocabulary_size
    step_by_step = Passes(target, session, drafting, verification, text)
    greedy = verification.sampling.temperature == 0  # then the engines compare argmax tokens, whatever the rule
    rule = ALGORITHM_1 if verification.argmax_only else None if greedy else verification.in_c
    if rule is None or drafting.watches:
        return step_by_step
    model, own = drafting.chooses or (None, TokenChoice(spec.drafting, size))
    plan = PassPlan(max(gamma.picks), text.end, own, TokenChoice(verification.sampling, size), RESIDUAL_EPSILON, rule)
    drafts = model is not None and isinstance(gamma, Constant)
    if drafts and (calls := target.passes(session, model, plan, text.tokens)) is not None:
        return WholeInCalls(step_by_step, calls)
    calls = target.passes(session, None, plan, text.tokens)
    return step_by_step if calls is None else VerifiedInCalls(step_by_step, calls, plan)


class PassLog:
    """The passes of one completion and its times, which are read from their marks when it is over."""

    def __init__(self, target: Model) -> None:
        self.passes: list[DonePass] = []
        self._now, self._experts, self._runs_are_timed = target.now, target.experts, target.device.type == "cpu"
        self._began = self._target_started = self._ready = target.now()
        self._counted = [PROMPTS.now()]
        self._first: Any = None

    def target_started(self) -> None:
        """The target has read the prompt."""
        self._target_started = self._now()
        self._counted.append(PROMPTS.now())

    def ready(self) -> None:
        """The draft has also read the prompt."""
        self._ready = self._now()
        self._counted.append(PROMPTS.now())

    def begin(self, mark: Any) -> None:
        """The first pass begins at `mark`."""
        self._first = mark

    def trace(self, text: Text) -> Trace:
        before, passes = self._first, list[Pass]()
        for done in self.passes:
            passes.append(self._pass(before, done))
            before = done.over_at
        of_target, of_draft = (one.to(other) for one, other in pairwise(self._counted))
        return Trace(
            text.tokens[text.first :],
            start_s=self._ready - self._began,
            decode_s=before - self._first,
            passes=passes,
            draft_start_s=self._ready - self._target_started,
            prompt_read=of_target.read,
            prompt_copied=of_target.copied,
            draft_prompt_read=of_draft.read,
            draft_prompt_copied=of_draft.copied,
        )

    def _pass(self, before: Any, done: DonePass) -> Pass:
        """`done`. Tokens after an end of sequence are not part of the completion, and do not count as accepted."""
        marks = (before, done.drafted_at, done.verified_at, done.over_at)
        draft_s, verify_s, accept_s = (after - before for before, after in pairwise(marks))
        parents, path = (None, None) if done.parents is None else (list(done.parents), list(done.path))
        emitted = len(done.emitted)
        experts = None if self._experts is None or done.experts is None else self._experts.distinct(done.experts)
        ran: tuple[float | None, ...] = (None, None, None)
        if self._runs_are_timed:
            ran_s = done.draft_ran_s, done.target_ran_s
            ran = *ran_s, draft_s + verify_s + accept_s - sum(ran_s)
        return Pass(
            len(done.drafted), min(len(done.path), emitted), emitted, draft_s, verify_s, accept_s, done.drafted,
            done.operations, parents, path, experts, *ran,
        )  # fmt: skip


def autoregressive(target: Model, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Trace:
    """Standard decoding of one prompt."""
    return _alone(autoregress(target, prompt, spec, generator), target)


def speculative(target: Model, draft: Draft, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Trace:
    """Speculative decoding of one prompt."""
    return _alone(speculate(target, draft, prompt, spec, generator), target)


def _alone(decoding: Decoding, target: Model) -> Trace:
    answer, mark = None, marking(target)
    while True:
        try:
            asked = decoding.send(answer)
        except StopIteration as over:
            trace: Trace = over.value
            return trace
        answer = asked[0].extend(asked[1], asked[2]) if type(asked) is Read else mark()
