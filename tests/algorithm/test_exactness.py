"""Speculative decoding writes the target's own distribution of whole texts: chi-square on a model with exact tables.

Statistical: seeds are fixed, so a test passes or fails for good; each comparison raises a false alarm for one seed in
10,000 (ALARM). That the comparison has teeth is shown on rules and drafts that are wrong in the ways others were.
"""

import random
from collections.abc import Callable

import pytest
import torch

from specbench.algorithm.acceptance.base import Verdict
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Adaptive, Gamma
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.draft import UniformDraft
from specbench.methods.suffix.config import SuffixConfig
from specbench.methods.suffix.draft import SuffixDraft
from specbench.sampling import Sampling, draw
from tests.support import chi
from tests.support.around import Around
from tests.support.chi import ALARM
from tests.support.decode import autoregressive, speculative
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, disjoint_table, exact, random_table

LENGTH = 4
SAMPLES = 2500

SAMPLINGS = {
    "T=1": Sampling(1.0),
    "T=0.7": Sampling(0.7),
    "top-k": Sampling(1.0, top_k=2),
    "top-p": Sampling(1.0, top_p=0.8),
    "all": Sampling(1.3, top_k=3, top_p=0.9),
}
TARGET = ToyModel(random_table(1, zeros=True))


def drafts() -> dict[str, Draft]:
    tables = {
        "perfect": TARGET.table_VVV,
        "near": 0.8 * TARGET.table_VVV + 0.2 * random_table(2),
        "far": random_table(3),
        "disjoint": disjoint_table(TARGET.table_VVV),
    }
    models: dict[str, Draft] = {name: ModelDraft(ToyModel(table), VOCABULARY) for name, table in tables.items()}
    cpu = torch.device("cpu")
    copies: dict[str, Draft] = {
        "lookup": LookupDraft(VOCABULARY, cpu, match=2),
        "suffix": SuffixDraft(SuffixConfig(depth=3, factor=3), VOCABULARY, cpu),
    }
    return models | {"uniform": UniformDraft(VOCABULARY, cpu)} | copies


def p_value(decode: Callable[[torch.Generator], list[int]], sampling: Sampling, samples: int = SAMPLES) -> float:
    """The chance that the target's own distribution gives texts at least this far from it."""
    return chi.p_value(decode, exact(TARGET, sampling, LENGTH), samples)


def decoder(
    draft: Draft, gamma: int | Gamma, sampling: Sampling, **options: object
) -> Callable[[torch.Generator], list[int]]:
    def decode(generator: torch.Generator) -> list[int]:
        return speculative(
            TARGET, draft, PROMPT, gamma=gamma, sampling=sampling, max_new_tokens=LENGTH, generator=generator, **options
        ).tokens

    return decode


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 8])  # the loop has no cases between these
def test_every_gamma_at_temperature_one(gamma: int) -> None:
    assert p_value(decoder(drafts()["near"], gamma, SAMPLINGS["T=1"]), SAMPLINGS["T=1"]) > ALARM


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize("name", ["perfect", "far", "disjoint", "uniform", "lookup", "suffix"])
def test_every_draft_from_perfect_to_disjoint(name: str) -> None:
    assert p_value(decoder(drafts()[name], 3, SAMPLINGS["T=1"]), SAMPLINGS["T=1"]) > ALARM


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize("setting", ["T=0.7", "top-k", "top-p", "all"])
def test_every_sampling_setting(setting: str) -> None:
    assert p_value(decoder(drafts()["far"], 2, SAMPLINGS[setting]), SAMPLINGS[setting]) > ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["near", "far", "perfect"])
def test_a_gamma_that_adapts_changes_no_probability(name: str) -> None:
    """Prices at which every gamma from 1 to 3 is picked in turn, so that the choice follows what was accepted."""
    adaptive = Adaptive(alpha=0.6, prices={1: 1.0, 2: 1.25, 3: 1.42}, weight=1.0)
    assert p_value(decoder(drafts()[name], adaptive, SAMPLINGS["T=1"]), SAMPLINGS["T=1"]) > ALARM


class Peeking(Draft):
    """A policy that looks at what it must not: it stops a proposal by the tokens that were drawn for it."""

    def __init__(self, target: ToyModel) -> None:
        self.target = target

    def start(self, prompt, sampling):  # type: ignore[no-untyped-def]
        return PeekingSession(drafts()["far"].start(prompt, sampling), self.target)

    operations = 1.0


class PeekingSession(Around):
    def __init__(self, inner, target: ToyModel) -> None:  # type: ignore[no-untyped-def]
        super().__init__(inner)
        self.target = target

    def propose(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
        """Drafts again until the target thinks the first token likely."""
        for _ in range(20):
            proposal = self.inner.propose(tokens, gamma, generator)
            self.inner.rollback(len(tokens) - 1)
            p_V = self.target.start(PROMPT).extend(tokens)[-1].exp()
            if not proposal.tokens or p_V[proposal.tokens[0]] > 0.4:
                break
        return proposal


@pytest.mark.statistical
def test_a_gamma_that_peeks_at_the_tokens_is_caught() -> None:
    assert p_value(decoder(Peeking(TARGET), 2, SAMPLINGS["T=1"]), SAMPLINGS["T=1"]) < ALARM


@pytest.mark.statistical
def test_the_baseline_too() -> None:
    sampling = SAMPLINGS["T=1"]

    def decode(generator: torch.Generator) -> list[int]:
        return autoregressive(TARGET, PROMPT, sampling=sampling, max_new_tokens=LENGTH, generator=generator).tokens

    assert p_value(decode, sampling) > ALARM


def test_a_perfect_draft_is_always_accepted_and_a_disjoint_one_never() -> None:
    for name, share in (("perfect", 1.0), ("disjoint", 0.0)):
        generator = torch.Generator().manual_seed(0)
        accepted = drafted = 0
        for _ in range(200):
            trace = speculative(
                TARGET,
                drafts()[name],
                PROMPT,
                gamma=3,
                sampling=SAMPLINGS["T=1"],
                max_new_tokens=4,
                generator=generator,
            )
            accepted += sum(p.accepted for p in trace.passes)
            drafted += sum(p.drafted for p in trace.passes)
        assert accepted == share * drafted


# What others got wrong. Each must be caught by the same comparison.


def no_residual(p, q, drafted, generator):  # type: ignore[no-untyped-def]
    """Draws from p after a rejection."""
    verdict = accept_exact(p, q, drafted, generator)
    if verdict.accepted < len(drafted):
        return Verdict.chain(verdict.accepted, draw(p[verdict.accepted], generator))
    return verdict


def other_q(p, q, drafted, generator):  # type: ignore[no-untyped-def]
    """Compares with a q at another temperature than the sampled q."""
    flat = q**0.5
    return accept_exact(p, flat / flat.sum(-1, keepdim=True), drafted, generator)


def greedy_match(p, q, drafted, generator):  # type: ignore[no-untyped-def]
    """Accepts what equals the target's argmax, at T > 0."""
    matched = [int(p[i].argmax()) == token for i, token in enumerate(drafted)]
    accepted = next((i for i, same in enumerate(matched) if not same), len(matched))
    return Verdict.chain(accepted, draw(p[accepted], generator))


def one_too_many(p, q, drafted, generator):  # type: ignore[no-untyped-def]
    """After full acceptance draws the next token from the row of the last draft: off by one."""
    verdict = accept_exact(p, q, drafted, generator)
    if drafted and verdict.accepted == len(drafted):
        return Verdict.chain(verdict.accepted, draw(p[verdict.accepted - 1], generator))
    return verdict


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize("rule", [no_residual, other_q, greedy_match, one_too_many])
def test_a_wrong_rule_is_caught(rule) -> None:  # type: ignore[no-untyped-def]
    sampling = SAMPLINGS["T=1"]
    assert p_value(decoder(drafts()["far"], 3, sampling, accept=rule), sampling) < ALARM


class ForgetfulSession(Around):
    """A draft session that never rolls back, so that rejected tokens remain in its cache."""

    def rollback(self, length: int) -> None:
        return


@pytest.mark.statistical
def test_a_target_cache_that_is_not_rolled_back_is_caught() -> None:
    sampling = SAMPLINGS["T=1"]

    class Forgetful(ToyModel):
        def start(self, prompt):  # type: ignore[no-untyped-def]
            return ForgetfulSession(super().start(prompt))

    target = Forgetful(TARGET.table_VVV)

    def decode(generator: torch.Generator) -> list[int]:
        try:
            return speculative(
                target, drafts()["far"], PROMPT, gamma=2, sampling=sampling, max_new_tokens=4, generator=generator
            ).tokens
        except (RuntimeError, IndexError, ValueError):
            return [random.randrange(3)] * 4  # it may also fail outright

    assert p_value(decode, sampling, 1500) < ALARM
