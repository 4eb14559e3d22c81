"""Horizontal cascades: cheaper drafts for later positions leave the target's distribution as it is, each token with the
q that drew it; with vertical cascades inside, too. Wrong ways are caught."""

import pytest
import torch

from specbench import theory
from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.draft import Draft
from specbench.analysis.acceptance.agreement import agreements
from specbench.choose.reasons import reasons
from specbench.cli.overrides import read
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.schema import RunConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.cascade.draft import CascadeDraft, CascadeSession
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.config import BigramConfig
from specbench.methods.ngram.draft import UniformDraft
from specbench.methods.several.config import HorizontalConfig
from specbench.methods.several.draft import HorizontalDraft, HorizontalSession
from specbench.methods.target_layers.draft import EarlyExitDraft
from specbench.sampling import Sampling
from tests.support import chi
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.predictions import predictions
from tests.support.toy import EOS, PROMPT, START, VOCABULARY, ToyModel, random_table

CPU = torch.device("cpu")
WARM = Sampling(1.0)
TARGET, GOOD, CHEAP = (ToyModel(random_table(seed)) for seed in (1, 2, 3))
LENGTH, SAMPLES, SIZE = 4, 2000, 40


def in_turn(*drafts: Draft, lengths: tuple[int, ...] = (1,)) -> HorizontalDraft:
    return HorizontalDraft(drafts, lengths, VOCABULARY, frozenset({EOS}), CPU)


def parts() -> dict[str, HorizontalDraft]:
    good, cheap = ModelDraft(GOOD, VOCABULARY), ModelDraft(CHEAP, VOCABULARY)
    vertical = CascadeDraft(GOOD, cheap, 2, VOCABULARY)
    lookup, uniform = LookupDraft(VOCABULARY, CPU, 2), UniformDraft(VOCABULARY, CPU)
    return {
        "models": in_turn(good, cheap),
        "vertical and horizontal": in_turn(vertical, uniform, lengths=(2,)),
        "a copy last": in_turn(good, lookup),
        "a copy first": in_turn(lookup, good),
        "three": in_turn(good, cheap, uniform, lengths=(1, 1)),
    }


def p_value(draft: Draft, sampling: Sampling = WARM, gamma: int = 3) -> float:
    return chi.speculative_p_value(TARGET, draft, PROMPT, gamma, sampling, LENGTH, SAMPLES)[0]


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("name", list(parts()))
def test_the_text_has_the_targets_distribution(name: str) -> None:
    """One false alarm in 10,000 seeds each."""
    assert p_value(parts()[name]) > chi.ALARM


@pytest.mark.statistical
def test_a_shared_q_for_all_levels_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is tested with the first draft's q."""
    plain = HorizontalSession.proposing

    def sharing(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
        proposal = yield from plain(self, tokens, gamma, generator)
        first = ModelDraft(GOOD, VOCABULARY).start(PROMPT, WARM)
        return proposal._replace(q_GV=first.score([*tokens, *proposal.tokens], len(tokens)))

    monkeypatch.setattr(HorizontalSession, "proposing", sharing)
    assert p_value(parts()["models"]) < chi.ALARM


@pytest.mark.statistical
def test_inner_lenience_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that the middle model accepted with lenience are no draws from its q."""
    plain = CascadeSession.__init__

    def leniently(self, *args):  # type: ignore[no-untyped-def]
        plain(self, *args)
        self.verification = Verification(lenient(0.3, WARM), WARM)

    monkeypatch.setattr(CascadeSession, "__init__", leniently)
    assert p_value(parts()["vertical and horizontal"]) < chi.ALARM


def test_each_token_has_the_q_of_the_draft_that_drew_it() -> None:
    generator = torch.Generator().manual_seed(3)
    drafts = [ModelDraft(model, VOCABULARY) for model in (GOOD, CHEAP, TARGET)]
    draft = in_turn(*drafts, lengths=(2, 1))
    part_at = [0, 0, 1, 2, 2, 2]
    for gamma in range(1, 7):
        for _ in range(10):
            proposal = draft.start(PROMPT, WARM).propose([START], gamma, generator)
            assert len(proposal.tokens) == gamma or proposal.tokens[-1] == EOS
            assert EOS not in proposal.tokens[:-1]
            text = [START, *proposal.tokens]
            scored = [one.start(PROMPT, WARM).score(text, 1) for one in drafts]
            ahead = list(draft.start(PROMPT, WARM).score_ahead(text, 1, gamma))
            assert proposal.q_GV is not None and proposal.operations == float(len(proposal.tokens))
            for position in range(len(proposal.tokens)):
                expected = scored[part_at[position]]
                assert torch.allclose(proposal.q_GV[position], expected[position])
                assert torch.allclose(ahead[position], expected)
    assert draft.stores() == []


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_greedy_text_is_the_targets_own(kind: str) -> None:
    ends = frozenset({1})
    target, middle, small = (
        EagerModel(network(kind, seed, layers=layers), SIZE, ends) for seed, layers in ((4, 2), (2, 1), (3, 1))
    )
    one, other, lookup = ModelDraft(middle, SIZE), ModelDraft(small, SIZE), LookupDraft(SIZE, CPU, 3)
    vertical = CascadeDraft(middle, lookup, 2, SIZE)
    drafts = [
        HorizontalDraft(chosen, [2] * (len(chosen) - 1), SIZE, ends, CPU)
        for chosen in (
            [one, other],
            [one, lookup],
            [lookup, one],
            [vertical, other],
            [EarlyExitDraft(target, 1), other],
        )
    ]
    for source in ((5, 9, 12, 30, 1), (17, 3, 22, 1)):
        prompt = Prompt(source, (0,)) if kind == "t5" else Prompt((), source[:-1])
        told = {"sampling": Sampling(0.0), "max_new_tokens": 20}
        own = autoregressive(target, prompt, generator=torch.Generator(), **told).tokens  # type: ignore[arg-type]
        for draft in drafts:
            for gamma in (1, 2, 3, 5):
                text = speculative(target, draft, prompt, gamma=gamma, generator=torch.Generator(), **told).tokens  # type: ignore[arg-type]
                assert text == own
        found = agreements(target, [drafts[0], one, other], prompt, own, Sampling(1.0), ahead=4)
        assert found[0].beta == found[1].beta and found[0].ahead[1].beta == found[2].beta


def test_lengths_by_theory_are_the_best_and_the_better_draft_comes_first() -> None:
    alphas, costs = (0.8, 0.5), (0.1, 0.001)
    free = dict.fromkeys(range(1, 9), 1.0)
    lengths = theory.horizontal_lengths(alphas, costs, free)
    best = theory.horizontal_improvement(alphas, costs, lengths)
    assert best > max(
        theory.walltime_improvement(alpha, gamma, c)
        for alpha, c in zip(alphas, costs, strict=True)
        for gamma in range(1, 9)
    )
    assert theory.horizontal_improvement((0.7,), (0.1,), (4,)) == pytest.approx(
        theory.walltime_improvement(0.7, 4, 0.1)
    )
    assert theory.horizontal_improvement(alphas, costs, (1, 1)) == pytest.approx((1 + 0.8 + 0.4) / 1.101)
    assert sum(lengths) <= 8 and theory.horizontal_lengths((0.9, 0.1), (0.0, 0.5), {4: 1.0}) == (3, 1)
    dear = {drafted: 1 + 0.3 * drafted for drafted in free}
    assert sum(theory.horizontal_lengths(alphas, costs, dear)) < sum(lengths)
    assert theory.horizontal_lengths(alphas, costs, {1: 1.0}) == ()


def test_it_is_written_as_a_cascade_on_the_command_line() -> None:
    words = ["draft=cascade", "draft.horizontal=[t5-nano,bigram]", "draft.lengths=[2]", "gamma=5"]
    assert read(words, RunConfig).overrides == [
        "draft=horizontal", "draft@draft.first=t5-nano", "draft@draft.second=bigram", "draft.lengths=[2]", "gamma=5"
    ]  # fmt: skip
    for wrong in (
        ["draft=bigram", "draft.horizontal=[t5-nano,bigram]"],
        ["draft=cascade", "draft.horizontal=[bigram]"],
    ):
        with pytest.raises(UserError, match="requires draft=cascade and two or three drafts"):
            read(wrong, RunConfig)


def test_a_part_that_agrees_less_further_ahead_is_scored_so() -> None:
    """Tokens that are copied from one place: the second stands for a proposal that began a token before."""
    lookup = LookupDraft(VOCABULARY, CPU, 3)
    draft = in_turn(lookup, ModelDraft(CHEAP, VOCABULARY), lengths=(2,))
    text = [START, 2, 3, 2, 3, 2]
    ahead = list(draft.start(PROMPT, WARM).score_ahead(text, 1, 3))
    own = list(lookup.start(PROMPT, WARM).score_ahead(text, 1, 2))
    assert len(ahead) == 3 and all(torch.equal(ahead[g], own[g]) for g in range(2))
    assert not torch.equal(own[0], own[1])


@pytest.mark.parametrize("later", ["medusa", "eagle", "blockwise", "hydra"])
def test_heads_can_only_come_first(later: str) -> None:
    """They read the target's state after the text, and would have the target read another draft's tokens as text."""
    config = HorizontalConfig(first=BigramConfig(), second=DRAFT_KINDS[later](shipped="somewhere"), lengths=[1])
    with pytest.raises(UserError, match="so it can only be draft.first"):
        config.check("draft")


def test_a_recommendation_names_the_drafts_in_turn_where_that_is_expected_to_pay() -> None:
    """The drafts' own speeds come first; nothing is said where the better draft is the cheaper."""
    table = predictions({"cheap": 0.5, "good": 0.8}, {"cheap": 0.001, "good": 0.2})
    (line,) = [line for line in reasons(table) if line.startswith("a horizontal cascade of ")]
    assert "of good, then" in line and "draft=cascade draft.horizontal=[good,cheap] draft.lengths=[" in line
    assert not any(
        line.startswith("a horizontal cascade")
        for line in reasons(predictions({"a": 0.5, "b": 0.8}, {"a": 0.2, "b": 0.1}))
    )
