"""Decoding of one prompt with the settings spelled out, for tests that vary one of them."""

import torch

from specbench.algorithm import decoding
from specbench.algorithm.acceptance.base import AcceptanceRule, Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.onehot import accept_onehot
from specbench.algorithm.decoding import DecodingSpec
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Constant, Gamma
from specbench.engine.session import Model, Prompt
from specbench.records.decoded import Trace
from specbench.sampling import Sampling


def spec_of(
    sampling: Sampling,
    max_new_tokens: int,
    gamma: int | Gamma = 0,
    accept: AcceptanceRule = accept_exact,
    compared: Sampling | None = None,
    greedy_draft: bool = False,
) -> DecodingSpec:
    """`compared` is how p is standardised for the rule, where that is not `sampling`."""
    policy = Constant(gamma) if isinstance(gamma, int) else gamma
    return DecodingSpec(
        sampling, max_new_tokens, Verification(accept_onehot if greedy_draft else accept, compared or sampling), policy
    )


def autoregressive(
    target: Model, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int, generator: torch.Generator
) -> Trace:
    return decoding.autoregressive(target, prompt, spec_of(sampling, max_new_tokens), generator)


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
    greedy_draft: bool = False,
) -> Trace:
    spec = spec_of(sampling, max_new_tokens, gamma, accept, compared, greedy_draft)
    trace = decoding.speculative(target, draft, prompt, spec, generator)
    assert sum(one.emitted for one in trace.passes) == len(trace.tokens), "passes emit the completion"
    assert all(one.accepted <= one.emitted <= one.accepted + 1 for one in trace.passes)
    return trace
