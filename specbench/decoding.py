"""Decoding one prompt: `autoregressive`, and `speculative`, which is Algorithm 1 and nothing else.

Both return a `Trace`: the tokens and where the time went. Neither knows tasks, text or statistics.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.acceptance import LOSSLESS, AcceptanceRule, accept_certain, accept_exact
from specbench.drafts import Draft, start_beside
from specbench.gamma import Constant, Gamma
from specbench.models import Model, Prompt, up_to_end
from specbench.sampling import Sampling, draw, most_likely, standardise


@dataclass(frozen=True)
class Pass:
    """One target pass of speculative decoding; times in seconds.

    `emitted` is `accepted` + 1, less what an end of sequence inside the block cut off.
    """

    drafted: int
    accepted: int
    emitted: int
    draft_s: float
    verify_s: float
    accept_s: float
    tokens: list[int] = field(default_factory=list)  # as drafted, the rejected ones too


@dataclass(frozen=True)
class Trace:
    """What decoding one prompt gave, and how long it took. Times in seconds."""

    tokens: list[int]
    start_s: float  # encoder and prefill, of the draft too
    decode_s: float  # everything after that
    steps_s: list[float] = field(default_factory=list)  # autoregressive: one entry a token
    passes: list[Pass] = field(default_factory=list)  # speculative: one entry a target pass
    draft_start_s: float = 0.0  # the draft's part of `start_s`


def autoregressive(
    target: Model, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int, generator: torch.Generator
) -> Trace:
    """Standard decoding: one target run a token."""
    began = target.now()
    session = target.start(prompt)
    tokens = list(prompt.prefix)
    steps_s = []
    started = before = target.now()
    for _ in range(max_new_tokens):
        logits_LV = session.extend(tokens[session.length :])
        if sampling.temperature == 0:
            (token,) = most_likely(logits_LV, target.vocabulary_size)
        else:
            token = draw(standardise(logits_LV[-1:], sampling, target.vocabulary_size)[0], generator)
        tokens.append(token)
        now = target.now()
        steps_s.append(now - before)
        before = now
        if token in target.eos_ids:
            break
    return Trace(tokens[len(prompt.prefix) :], started - began, before - started, steps_s=steps_s)


def speculative(
    target: Model,
    draft: Draft,
    prompt: Prompt,
    *,
    gamma: int | Gamma,
    sampling: Sampling,
    max_new_tokens: int,
    generator: torch.Generator,
    accept: AcceptanceRule = accept_exact,
    compared: Sampling | None = None,
) -> Trace:
    """Speculative decoding: `gamma` drafted tokens are checked by one target run (Algorithm 1, or the rule `accept`).

    `compared` is how p is adjusted for the rule, where that is not `sampling`.

    `gamma` may be a policy, which decides before each pass from the passes that are over. A pass never drafts past
    `max_new_tokens`, and the text ends at the first end-of-sequence token, also inside an accepted block.
    """
    began = target.now()
    session = target.start(prompt)
    target_started = target.now()
    drafting = start_beside(session, draft, prompt, sampling)
    certain = sampling.temperature == 0 and accept in LOSSLESS
    choice = (Constant(gamma) if isinstance(gamma, int) else gamma).start()
    tokens = list(prompt.prefix)
    end = len(tokens) + max_new_tokens
    passes: list[tuple[Any, ...]] = []  # what makes a Pass, which is made when the clock has stopped
    started = before = target.now()
    while len(tokens) < end:
        proposal = drafting.propose(tokens, min(choice.next(), end - len(tokens) - 1), generator)
        drafted_at = target.now()

        count = len(proposal.tokens)
        logits_LV = session.extend(tokens[session.length :] + proposal.tokens)
        if certain:
            best_G = most_likely(logits_LV, target.vocabulary_size, count + 1)
        else:
            p_GV = standardise(logits_LV[-(count + 1) :], compared or sampling, target.vocabulary_size)
        verified_at = target.now()

        if certain:
            accepted, token = accept_certain(best_G, proposal.tokens)
        else:
            accepted, token = accept(p_GV, proposal.q(p_GV), proposal.tokens, generator)
        choice.learn(count, accepted)
        emitted = up_to_end([*proposal.tokens[:accepted], token], target.eos_ids)
        tokens += emitted
        # The newest token has not been read yet; all behind it was rejected.
        session.rollback(len(tokens) - 1)
        drafting.rollback(len(tokens) - 1)
        now = target.now()
        times = (drafted_at - before, verified_at - drafted_at, now - verified_at)
        # What was drafted behind an end of sequence was never part of the text.
        passes.append((count, min(accepted, len(emitted)), len(emitted), *times, proposal.tokens))
        before = now
        if tokens[-1] in target.eos_ids:
            break
    return Trace(
        tokens[len(prompt.prefix) :],
        start_s=started - began,
        decode_s=before - started,
        passes=[Pass(*one) for one in passes],
        draft_start_s=started - target_started,
    )
