"""Standard decoding and Algorithm 1, each implemented once, for single sequences and for batches.

A sequence is a generator. When it needs a model it yields a `Read` and receives the logits. When it needs a time stamp
it yields a `Moment` and receives a mark (`engine.clock`), whose time is read when the completion ends. So a driver may
answer at once (`alone`), or keep the rows of a batch in lockstep, answer their reads in one run, and give all rows the
same time stamps (`together`).
"""

from collections.abc import Generator, Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import torch

from specbench.algorithm.acceptance.verify import target_rows, verdict_on_host
from specbench.algorithm.decoding.spec import DecodingSpec, Pass, Trace
from specbench.algorithm.draft import Draft, Drafting, Outcome, Proposed, expect, models_of, read_of
from specbench.engine.session import Model, Prompt, Read, get_ready, up_to_end
from specbench.sampling import draw_next


class Moment(Enum):
    """The event for which a sequence requests a time stamp."""

    READY = auto()  # the prompt has been read, and the first pass begins
    WITHIN = auto()  # a part of a pass is over
    OVER = auto()  # a pass is over


Decoding = Generator[Read | Moment, Any, Trace]
READY, WITHIN, OVER = Moment.READY, Moment.WITHIN, Moment.OVER


def autoregress(target: Model, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Decoding:
    """Standard decoding: one target run a token. Each is a pass."""
    get_ready(target, prompt, spec.max_new_tokens)
    began = target.now()
    session = target.start(prompt)
    tokens = list(prompt.prefix)
    start_s = target.now() - began
    marks = [(yield READY)]
    for _ in range(spec.max_new_tokens):
        logits_LV = yield Read(session, tokens[session.length :])
        token, _ = draw_next(logits_LV, spec.sampling, target.vocabulary_size, generator)
        tokens.append(token)
        marks.append((yield OVER))
        if token in target.eos_ids:
            break
    steps_s = [after - before for before, after in pairwise(marks)]
    return Trace(tokens[len(prompt.prefix) :], start_s, marks[-1] - marks[0], steps_s=steps_s)


def speculate(target: Model, draft: Draft, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Decoding:
    """Speculative decoding: one target run verifies the tokens that `draft` proposes, by the rule of `spec`."""
    expect(draft, spec.drafting, spec.gamma.picks)
    for model in (target, *models_of(draft)):
        get_ready(model, prompt, spec.max_new_tokens)
    began = target.now()
    session = target.start(prompt)
    target_started = target.now()
    drafting = Drafting(session, draft, prompt, spec.drafting)
    gamma, verification = spec.gamma.start(), spec.verification
    tokens = list(prompt.prefix)
    end = len(tokens) + spec.max_new_tokens
    passes: list[tuple[Any, ...]] = []  # what makes a Pass, which is made when the completion is over, with its marks
    ready = target.now()
    started = before = yield READY
    while len(tokens) < end:
        proposal = yield from drafting.propose(tokens, min(gamma.next(), end - len(tokens) - 1), generator)
        drafted_at = yield WITHIN

        unread = tokens[session.length :]
        logits_LV = yield read_of(session, unread, proposal)
        verified_LV, beside_LV = split_logits(logits_LV, proposal)
        rows = target_rows(verified_LV, proposal, verification, target.vocabulary_size)
        verified_at = yield WITHIN

        size = proposal.size
        proposal, (path, token) = verdict_on_host(rows, proposal, verification, generator)
        drafted = proposal.tokens
        emitted = up_to_end([*(drafted[index] for index in path), token], target.eos_ids)
        tokens += emitted
        drafting.commit(tokens, Outcome(proposal, len(unread), path, emitted, verified_LV, size + 1, beside_LV))
        gamma.learn(len(drafted), len(path))
        now = yield OVER

        # Tokens drafted after an end of sequence are not part of the completion.
        accepted, marks = min(len(path), len(emitted)), (before, drafted_at, verified_at, now)
        tree = () if proposal.parents is None else (list(proposal.parents), list(path))
        passes.append((len(drafted), accepted, len(emitted), marks, drafted, proposal.operations, *tree))
        before = now
        if tokens[-1] in target.eos_ids:
            break
    return Trace(
        tokens[len(prompt.prefix) :],
        start_s=ready - began,
        decode_s=before - started,
        passes=[_pass(*values) for values in passes],
        draft_start_s=ready - target_started,
    )


def split_logits(logits_LV: torch.Tensor, proposal: Proposed) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The target's logits after the tokens to verify, and after those that were read beside them, if there are any."""
    if (beside := proposal.beside) is None:
        return logits_LV, None
    verified_LV, beside_LV = logits_LV.tensor_split([-len(beside.tokens)])
    return verified_LV, beside_LV


def _pass(drafted: int, accepted: int, emitted: int, marks: Sequence[Any], *others: Any) -> Pass:
    draft_s, verify_s, accept_s = (after - before for before, after in pairwise(marks))
    return Pass(drafted, accepted, emitted, draft_s, verify_s, accept_s, *others)
