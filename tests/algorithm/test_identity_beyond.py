"""At T = 0, on real architectures in fp32: block verification and policies of gamma give the target's completion, and
lenience writes what our reading of A.5 says, played without a cache.
"""

from functools import cache

import pytest
import torch

from specbench.algorithm.acceptance.base import AcceptanceRule
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Gamma, Heuristic
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.draft import UniformDraft
from specbench.sampling import Sampling, before_argmax
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.prompts import THREE, prompts

KINDS = ["t5", "gpt2", "llama"]
SIZE = 40
TOKENS = 16
GREEDY = Sampling(0.0)


@cache
def target_of(kind: str) -> EagerModel:
    return EagerModel(network(kind, 4), SIZE, frozenset({1}))


@cache
def small_of(kind: str) -> EagerModel:
    return EagerModel(network(kind, 2, layers=1), SIZE, frozenset({1}))


def drafts(kind: str, confidence: float | None = None) -> list[Draft]:
    models = [ModelDraft(model(kind), SIZE, confidence) for model in (small_of, target_of)]
    return models if confidence is not None else [*models, UniformDraft(SIZE, torch.device("cpu"))]


def decode(kind: str, draft: Draft, prompt: Prompt, gamma: int | Gamma, accept: AcceptanceRule) -> list[int]:
    return speculative(
        target_of(kind), draft, prompt,
        gamma=gamma, sampling=GREEDY, max_new_tokens=TOKENS, generator=torch.Generator().manual_seed(3), accept=accept,
    ).tokens  # fmt: skip


def alone(kind: str, prompt: Prompt) -> list[int]:
    return autoregressive(
        target_of(kind), prompt, sampling=GREEDY, max_new_tokens=TOKENS, generator=torch.Generator()
    ).tokens


def played(p, q, drafted, generator):  # type: ignore[no-untyped-def]
    """Block verification on one-hot rows, without the short cut that decoding takes at T = 0."""
    return accept_block(p, q, drafted, generator)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_block_verification_is_the_targets_own_text(kind: str) -> None:
    for prompt in prompts(kind, THREE[::2]):
        own = alone(kind, prompt)
        for draft in drafts(kind):
            for gamma in (1, 2, 4, 8):
                assert decode(kind, draft, prompt, gamma, played) == own
            assert decode(kind, draft, prompt, 4, accept_block) == own


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_the_heuristic_and_a_confidence_too(kind: str) -> None:
    for prompt in prompts(kind, THREE[::2]):
        own = alone(kind, prompt)
        for draft in (*drafts(kind), *drafts(kind, confidence=0.5)):
            for accept in (accept_exact, played):
                assert decode(kind, draft, prompt, Heuristic(most=12, first=3), accept) == own
                assert decode(kind, draft, prompt, 6, accept) == own


@pytest.mark.parametrize("lenience", [0.5, 1e-4, 1e-12])
@pytest.mark.parametrize("kind", KINDS)
def test_lenience_is_our_reading_of_a5(kind: str, lenience: float) -> None:
    for prompt in prompts(kind, THREE[::2]):
        ours = speculative(
            target_of(kind), ModelDraft(small_of(kind), SIZE), prompt,
            gamma=3, sampling=GREEDY, max_new_tokens=TOKENS, generator=torch.Generator(),
            accept=lenient(lenience, GREEDY), compared=before_argmax(GREEDY),
        ).tokens  # fmt: skip
        assert ours == by_the_book(kind, prompt, lenience)


def by_the_book(kind: str, prompt: Prompt, lenience: float) -> list[int]:
    """Three greedy tokens of the draft, kept while p(x) >= l max p at T = 1, then the argmax; every row is computed
    afresh."""

    def row(model: EagerModel, tokens: list[int]) -> torch.Tensor:
        session = model.start(prompt)
        return session.extend(tokens[session.length :])[-1, :SIZE].softmax(-1)

    tokens, end = list(prompt.prefix), len(prompt.prefix) + TOKENS
    while len(tokens) < end and tokens[-1] != 1:
        drafted: list[int] = []
        while len(drafted) < min(3, end - len(tokens) - 1) and 1 not in drafted:
            drafted.append(int(row(small_of(kind), [*tokens, *drafted]).argmax()))
        for token in drafted:
            p = row(target_of(kind), tokens)
            if p[token] < lenience * p.max():
                break
            tokens.append(token)
            if token == 1:
                break
        if tokens[-1] != 1:
            tokens.append(int(row(target_of(kind), tokens).argmax()))
    return tokens[len(prompt.prefix) :]


def test_under_lenience_a_pass_has_more_tokens() -> None:
    prompt, draft = prompts("gpt2", THREE[::2])[0], ModelDraft(small_of("gpt2"), SIZE)

    def per_pass(lenience: float) -> float:
        trace = speculative(
            target_of("gpt2"), draft, prompt,
            gamma=3, sampling=GREEDY, max_new_tokens=TOKENS, generator=torch.Generator(),
            accept=lenient(lenience, GREEDY), compared=before_argmax(GREEDY),
        )  # fmt: skip
        return len(trace.tokens) / len(trace.passes)

    assert per_pass(1e-30) > per_pass(1.0)
