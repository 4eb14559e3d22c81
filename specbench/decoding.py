"""Decoding one prompt: `autoregressive`, and `speculative`, which is Algorithm 1 and nothing else.

Both return a `Trace`: the tokens and where the time went. Neither knows tasks, text or statistics.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specbench.acceptance import Proposal, Verification, accept_exact, target_rows, verify
from specbench.drafts import Draft, ProposesTrees, start_beside
from specbench.gamma import Constant, Gamma
from specbench.models import Model, Prompt, Session, up_to_end
from specbench.sampling import Sampling, draw_next
from specbench.trees import ROOT

NOTHING_DRAFTED = Constant(0)


@dataclass(frozen=True)
class DecodingSpec:
    """How texts are decoded: all that a config says of it, resolved once and handed on. Before a gamma is chosen
    nothing is drafted."""

    sampling: Sampling
    max_new_tokens: int
    verification: Verification
    gamma: Gamma = NOTHING_DRAFTED

    @classmethod
    def algorithm_1(cls, sampling: Sampling, max_new_tokens: int, gamma: int = 0) -> "DecodingSpec":
        """The paper's Algorithm 1 at a constant gamma."""
        return cls(sampling, max_new_tokens, Verification(accept_exact, sampling), Constant(gamma))


@dataclass(frozen=True)
class Pass:
    """One target pass of speculative decoding; times in seconds.

    `emitted` is `accepted` + 1, less what an end of sequence inside the block cut off. `draft_operations`: see
    `Proposal.operations`.
    """

    drafted: int
    accepted: int
    emitted: int
    draft_s: float
    verify_s: float
    accept_s: float
    tokens: list[int] = field(default_factory=list)  # as drafted, the rejected ones too
    draft_operations: float | None = None
    parents: list[int] | None = None  # of a tree: of each token, see `Proposal.parents`
    path: list[int] | None = None  # of a tree: the accepted tokens, by index


@dataclass(frozen=True)
class Trace:
    """What decoding one prompt gave, and how long it took. Times in seconds."""

    tokens: list[int]
    start_s: float  # encoder and prefill, of the draft too
    decode_s: float  # everything after that
    steps_s: list[float] = field(default_factory=list)  # autoregressive: one entry a token
    passes: list[Pass] = field(default_factory=list)  # speculative: one entry a target pass
    draft_start_s: float = 0.0  # the draft's part of `start_s`


def autoregressive(target: Model, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Trace:
    """Standard decoding: one target run a token."""
    began = target.now()
    session = target.start(prompt)
    tokens = list(prompt.prefix)
    steps_s = []
    started = before = target.now()
    for _ in range(spec.max_new_tokens):
        logits_LV = session.extend(tokens[session.length :])
        token, _ = draw_next(logits_LV, spec.sampling, target.vocabulary_size, generator)
        tokens.append(token)
        now = target.now()
        steps_s.append(now - before)
        before = now
        if token in target.eos_ids:
            break
    return Trace(tokens[len(prompt.prefix) :], started - began, before - started, steps_s=steps_s)


def speculative(target: Model, draft: Draft, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Trace:
    """Speculative decoding: the tokens that `draft` proposes are verified by one target run (Algorithm 1, or another
    rule of `spec`).

    A pass never drafts past `max_new_tokens`, and the text ends at the first end-of-sequence token, also inside an
    accepted block.
    """
    began = target.now()
    session = target.start(prompt)
    target_started = target.now()
    drafting = start_beside(session, draft, prompt, spec.sampling)
    gamma, verification = spec.gamma.start(), spec.verification
    tokens = list(prompt.prefix)
    end = len(tokens) + spec.max_new_tokens
    passes: list[tuple[Any, ...]] = []  # what makes a Pass, which is made when the clock has stopped
    started = before = target.now()
    while len(tokens) < end:
        proposal = drafting.propose(tokens, min(gamma.next(), end - len(tokens) - 1), generator)
        drafted = proposal.tokens
        drafted_at = target.now()

        unread = tokens[session.length :]
        logits_LV = _read(session, unread, proposal)
        rows = target_rows(logits_LV, len(drafted), verification, target.vocabulary_size)
        verified_at = target.now()

        path, token = verify(rows, proposal, verification, generator)
        gamma.learn(len(drafted), len(path))
        emitted = up_to_end([*(drafted[index] for index in path), token], target.eos_ids)
        tokens += emitted
        # The newest token has not been read yet; all after it was rejected, and all beside it.
        if proposal.parents is not None:
            kept = path[: len(emitted) - 1]
            session.select([*range(len(unread)), *(len(unread) + node for node in kept)])
            assert isinstance(drafting, ProposesTrees)
            drafting.select(kept)
        session.rollback(len(tokens) - 1)
        drafting.rollback(len(tokens) - 1)
        now = target.now()
        times = (drafted_at - before, verified_at - drafted_at, now - verified_at)
        # What was drafted after an end of sequence was never part of the text.
        accepted = min(len(path), len(emitted))
        tree = () if proposal.parents is None else (list(proposal.parents), list(path))
        passes.append((len(drafted), accepted, len(emitted), *times, drafted, proposal.operations, *tree))
        before = now
        if tokens[-1] in target.eos_ids:
            break
    return Trace(
        tokens[len(prompt.prefix) :],
        start_s=started - began,
        decode_s=before - started,
        passes=[Pass(*values) for values in passes],
        draft_start_s=started - target_started,
    )


def _read(session: Session, unread: list[int], proposal: Proposal) -> Tensor:
    """The target's logits for all that it has not read, in one run: the end of the text, then what is proposed. In
    front of a tree the end of the text is read as a part of it, a stem that every path goes through."""
    if proposal.parents is None:
        return session.extend(unread + proposal.tokens)
    stem = len(unread)
    parents = [*range(ROOT, stem - 1), *(stem + parent for parent in proposal.parents)]
    return session.extend(unread + proposal.tokens, parents)
