"""Standard decoding and Algorithm 1, for single sequences and for batches.

A sequence is a generator. When it needs a model it yields a `Read` and receives the logits. When it needs a time stamp
it yields a `Moment` and receives a mark (`engine.session.marking`), whose time is read when the completion ends. So a
driver may answer at once (`speculative`), or keep the rows of a batch in lockstep, answer their reads in one run, and
give all rows the same time stamps (`algorithm.batching`).

Where the target's engine runs passes itself (`Model.passes`), a sequence yields nothing within them:
tokens and times come with each `DonePass`. Tests compare these passes with those of this module, token by token.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Any, TypeGuard

import torch

from specbench.algorithm.acceptance.base import RESIDUAL_EPSILON, Proposal, Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.verify import next_token, target_rows, verdict_on_host
from specbench.algorithm.draft import Draft, Drafting, Proposed
from specbench.algorithm.gamma import Constant, Gamma
from specbench.engine.experts import Counting
from specbench.engine.session import (
    DonePass,
    Model,
    PassesInCalls,
    PassNumbers,
    PassPlan,
    Prompt,
    Read,
    Session,
    marking,
)
from specbench.sampling import Choice, DrawnNumbers, Sampling, uniforms

NOTHING_DRAFTED = Constant(0)
GREEDY = Sampling(temperature=0.0)
MOST_DRAWN = 8  # passes whose random numbers are drawn at once: those after an end would be in vain


@dataclass(frozen=True)
class DecodingSpec:
    """Everything that determines how prompts are decoded, resolved from the config once.

    Without a chosen gamma nothing is drafted.
    """

    sampling: Sampling
    max_new_tokens: int
    verification: Verification
    gamma: Gamma = NOTHING_DRAFTED

    @property
    def drafting(self) -> Sampling:
        """The sampling of the draft: the target's, or greedy if the rule requires a greedy draft."""
        return GREEDY if self.verification.traits.greedy_draft else self.sampling

    @classmethod
    def algorithm_1(cls, sampling: Sampling, max_new_tokens: int, gamma: int = 0) -> "DecodingSpec":
        """The paper's Algorithm 1 at a constant gamma."""
        return cls(sampling, max_new_tokens, Verification(accept_exact, sampling), Constant(gamma))


@dataclass(frozen=True)
class Pass:
    """One target pass of speculative decoding; times in seconds.

    `emitted` is `accepted` + 1, minus the tokens after an end of sequence inside the block. `draft_operations`: see
    `Proposal.operations`.
    """

    drafted: int
    accepted: int
    emitted: int
    draft_s: float
    verify_s: float
    accept_s: float
    tokens: list[int] = field(default_factory=list)  # as drafted, rejected tokens too
    draft_operations: float | None = None
    parents: list[int] | None = None  # of a tree: of each token, see `Proposal.parents`
    path: list[int] | None = None  # of a tree: the accepted tokens, by index
    experts: list[int] | None = None  # distinct experts that the target read, by layer; of all rows of a batch


@dataclass(frozen=True)
class Trace:
    """The result of decoding one prompt, and its times in seconds."""

    tokens: list[int]
    start_s: float  # encoder and prefill, of the draft too
    decode_s: float  # everything after that
    steps_s: list[float] = field(default_factory=list)  # autoregressive: one entry a token
    passes: list[Pass] = field(default_factory=list)  # speculative: one entry a target pass
    draft_start_s: float = 0.0  # the draft's part of `start_s`
    rows: list[int] | None = None  # of a batch: how many rows each step or pass had; `decode_s` is then a share
    step_experts: list[int] | None = None  # autoregressive: distinct experts of each step, summed over layers


class Moment(Enum):
    """The event for which a sequence requests a time stamp."""

    READY = auto()  # the prompt has been read, and the first pass begins
    WITHIN = auto()  # a part of a pass is over
    OVER = auto()  # a pass is over


Decoding = Generator[Read | Moment, Any, Trace]
READY, WITHIN, OVER = Moment.READY, Moment.WITHIN, Moment.OVER


def autoregress(target: Model, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Decoding:
    """Standard decoding: one target step a token; several steps in one call where the engine can."""
    target.get_ready(prompt, spec.max_new_tokens)
    began = target.now()
    session, repeat = target.start(prompt), target.repeat
    tokens, choice = list(prompt.prefix), Choice(spec.sampling, target.vocabulary_size)
    end = len(tokens) + spec.max_new_tokens
    plan = PassPlan(0, end, choice, choice)
    in_calls = target.passes(session, None, plan, tokens)
    start_s = target.now() - began
    counting = Counting(target.experts)
    marks = [(yield READY)]
    while len(tokens) < end:
        if in_calls is not None:
            for done in _done(in_calls, len(tokens), plan, generator):
                tokens += done.emitted
                marks.append(done.over_s)
        else:
            counting.begin()
            logits_LV = yield Read(session, tokens[session.length :])
            counting.end()
            tokens.append(next_token(logits_LV, spec.sampling, target.vocabulary_size, generator, repeat))
            marks.append((yield OVER))
        if tokens[-1] in target.eos_ids:
            break
    steps_s = [after - before for before, after in pairwise(marks)]
    experts = [sum(layers) for layers in counting.counts() if layers is not None] or None
    return Trace(tokens[len(prompt.prefix) :], start_s, marks[-1] - marks[0], steps_s, step_experts=experts)


def speculate(target: Model, draft: Draft, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Decoding:
    """Algorithm 1: in each pass one target run verifies the tokens that `draft` proposes, by the rule of `spec`.

    A pass never drafts past `max_new_tokens`, and the completion ends at the first end-of-sequence token, also inside
    an accepted block.
    """
    draft.expect(spec.drafting, spec.gamma.picks)
    for model in (target, *draft.models):
        model.get_ready(prompt, spec.max_new_tokens)
    began = target.now()
    session = target.start(prompt)
    target_started = target.now()
    drafting = Drafting(session, draft, prompt, spec.drafting, target.eos_ids)
    gamma, verification, repeat = spec.gamma.start(), spec.verification, target.repeat
    counting = Counting(target.experts)
    tokens = list(prompt.prefix)
    end = len(tokens) + spec.max_new_tokens
    passes: list[tuple[Any, ...]] = []  # the arguments of `_pass`, whose marks are read when the completion is over
    plan = _plan(target, drafting, spec, end)
    in_calls, whole = _in_calls(target, session, drafting, plan, spec, tokens)
    ready = target.now()
    started = before = yield READY
    while len(tokens) < end and not (passes and tokens[-1] in target.eos_ids):
        if whole:
            assert in_calls is not None
            for done in _done(in_calls, len(tokens), plan, generator):
                marks = (before, done.drafted_s, done.verified_s, before := done.over_s)
                counting.end()  # none: a step with experts is not one program
                passes.append((marks, done.drafted, range(done.accepted), len(done.emitted), None, None))
                tokens += done.emitted
            continue
        # Draft.
        proposal = yield from drafting.propose(tokens, min(gamma.next(), end - len(tokens) - 1), generator)
        drafted_at = yield WITHIN
        path: Sequence[int]
        if in_calls is not None and _is_plain(proposal, plan):
            # Verify, accept and roll back in one call.
            asked = max(proposal.asked, proposal.size)
            drawn = DrawnNumbers.of(asked, generator, generator.device) if plan.choosing.draws else None
            done = in_calls.verify(tokens, proposal.tokens, proposal.q_GV, drawn)
            counting.end()
            verified_at, path, emitted = done.verified_s, range(done.accepted), len(done.emitted)
            tokens += done.emitted
            drafting.own.rollback(len(tokens) - 1)
        else:
            # Verify: p at each of the draft tokens and after the last, in one run of the target.
            counting.begin()
            logits_LV = yield drafting.read(tokens, proposal)
            counting.end()
            rows = target_rows(logits_LV, proposal, verification, target.vocabulary_size, repeat)
            verified_at = yield WITHIN
            # Accept, and draw the token that follows.
            proposal, verdict = verdict_on_host(rows, proposal, verification, generator, repeat)
            # Roll back what was rejected.
            path, emitted = verdict.path, drafting.commit(tokens, proposal, verdict, logits_LV)
        gamma.learn(len(proposal.tokens), len(path))
        now = yield OVER
        marks = (before, drafted_at, verified_at, now)
        passes.append((marks, proposal.tokens, path, emitted, proposal.operations, proposal.parents))
        before = now
    return Trace(
        tokens[len(prompt.prefix) :],
        start_s=ready - began,
        decode_s=before - started,
        passes=[_pass(experts, *values) for experts, values in zip(counting.counts(), passes, strict=True)],
        draft_start_s=ready - target_started,
    )


def _plan(target: Model, drafting: Drafting, spec: DecodingSpec, end: int) -> PassPlan:
    """Of the passes of `spec`."""
    chooses = drafting.own.chooses
    own = Choice(spec.drafting, target.vocabulary_size) if chooses is None else chooses[1]
    choosing = Choice(spec.verification.sampling, target.vocabulary_size)
    return PassPlan(max(spec.gamma.picks), end, own, choosing, RESIDUAL_EPSILON)


def _in_calls(
    target: Model, session: Session, drafting: Drafting, plan: PassPlan, spec: DecodingSpec, tokens: list[int]
) -> tuple[PassesInCalls | None, bool]:
    """What runs passes in calls of the target's engine, and whether it drafts as well; None where it cannot.

    It can by the rule of Algorithm 1 and with drafts that need nothing of the target, and it drafts with one model at a
    constant gamma.
    """
    verification = spec.verification
    is_exact = verification.argmax_only or verification.rule is accept_exact
    if not is_exact or drafting.needs_target:
        return None, False
    if (chooses := drafting.own.chooses) is not None and isinstance(spec.gamma, Constant):
        whole = target.passes(session, chooses[0], plan, tokens)
        if whole is not None:
            return whole, True
    return target.passes(session, None, plan, tokens), False


def _is_plain(proposal: Proposed, plan: PassPlan) -> TypeGuard[Proposal]:
    return isinstance(proposal, Proposal) and proposal.is_plain(plan.gamma, plan.choosing.vocabulary_size)


def _done(in_calls: PassesInCalls, length: int, plan: PassPlan, generator: torch.Generator) -> list[DonePass]:
    """The next passes after `length` tokens, on the random numbers that single passes would draw."""
    if not plan.choosing.draws:
        return in_calls.run(length, None, in_calls.most)
    gamma, left, device, drawn = plan.gamma, plan.end - length, generator.device, []
    if gamma == 0:
        next_P = uniforms(min(in_calls.most, left), generator, device)
        none_P0 = next_P.new_empty(len(next_P), 0)
        return in_calls.run(length, PassNumbers(none_P0, none_P0, next_P.unsqueeze(-1)), len(next_P))
    most = min(in_calls.most, MOST_DRAWN, left // (gamma + 1)) or 1  # one with less than gamma is a call's only pass
    for _ in range(most):
        uniform_G = uniforms(min(gamma, left - 1), generator, device)
        after = DrawnNumbers.of(len(uniform_G), generator, device)
        drawn.append((uniform_G, after.trials_G, after.next_1))
    return in_calls.run(length, PassNumbers(*map(torch.stack, zip(*drawn, strict=True))), most)


def _pass(
    experts: list[int] | None,
    marks: Sequence[Any],
    drafted: list[int],
    path: Sequence[int],
    emitted: int,
    operations: float | None,
    parents: Sequence[int] | None,
) -> Pass:
    """A pass; tokens drafted after an end of sequence are not part of the completion, and do not count as accepted."""
    draft_s, verify_s, accept_s = (after - before for before, after in pairwise(marks))
    nodes, chosen = (None, None) if parents is None else (list(parents), list(path))
    accepted = min(len(path), emitted)
    return Pass(
        len(drafted), accepted, emitted, draft_s, verify_s, accept_s, drafted, operations, nodes, chosen, experts
    )


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
