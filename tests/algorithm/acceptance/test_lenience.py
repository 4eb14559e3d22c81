"""Lenience on exact distributions: A.5's alpha(l) and bound, the residual, and our reading of its rule at T = 0."""

from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import TokenRule, Verdict, residual
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.lenient import Lenient, NearBest, lenient
from specbench.analysis.acceptance.agreement import accepted, agreements, emitted, total_variation
from specbench.analysis.summary import under_lenience
from specbench.engine.eager.model import EagerModel
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling, before_argmax, standardise
from tests.support.networks import network
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, random_table

LENIENCES = (1.0, 0.5, 0.3, 0.1)
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)


def some(seed: int, rows: int = 20, tokens: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(rows, tokens, generator=generator) ** 3 + 1e-4
    return table / table.sum(-1, keepdim=True)


def one_hot(p_LV: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(p_LV).scatter_(-1, p_LV.argmax(-1, keepdim=True), 1.0)


def test_alpha_under_lenience_is_the_definition_of_a5() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.1, 0.1, 0.8]])
    assert accepted(Lenient(1.0), p, q).item() == pytest.approx(0.1 + 0.1 + 0.2)
    assert accepted(Lenient(0.5), p, q).item() == pytest.approx(0.1 + 0.1 + 0.4)
    assert accepted(Lenient(0.25), p, q).item() == pytest.approx(1.0)
    p, q = some(11), some(12)
    for lenience in LENIENCES:
        by_formula = (p / lenience).minimum(q).sum(-1)
        assert accepted(Lenient(lenience), p, q) == pytest.approx(by_formula, abs=1e-6)


@pytest.mark.parametrize("lenience", LENIENCES)
def test_what_comes_out_is_a_distribution_and_no_token_gets_more_than_p_over_l(lenience: float) -> None:
    p, q = some(1), some(2)
    out = emitted(Lenient(lenience), p, q)
    assert out.sum(-1).tolist() == pytest.approx([1.0] * len(p), abs=1e-5)
    assert (out <= p / lenience + 1e-6).all()


def test_a_residual_of_p_alone_would_break_the_promise() -> None:
    """Drawing from p after a rejection gives some token more than p / l."""

    class FromP(Lenient):
        def recovered(self, p_LV: torch.Tensor, q_LV: torch.Tensor) -> torch.Tensor:
            return p_LV

    p, q = some(1), some(2)
    assert (emitted(FromP(0.5), p, q) > p / 0.5 + 1e-3).any()


def test_the_residual_of_algorithm_1_would_keep_it_too_and_stray_no_further() -> None:
    class Plain(Lenient):
        def recovered(self, p_LV: torch.Tensor, q_LV: torch.Tensor) -> torch.Tensor:
            return residual(p_LV, q_LV)

    p, q = some(1), some(2)
    assert (emitted(Plain(0.5), p, q) <= p / 0.5 + 1e-6).all()
    assert (total_variation(Plain(0.5), p, q) <= total_variation(Lenient(0.5), p, q) + 1e-6).all()


def test_lenience_one_is_algorithm_1() -> None:
    p, q = some(3), some(4)
    assert emitted(Lenient(1.0), p, q) == pytest.approx(p, abs=1e-6)
    assert total_variation(Lenient(1.0), p, q).tolist() == pytest.approx([0.0] * len(p), abs=1e-6)
    same = (p.argmax(-1) == q.argmax(-1)).float().tolist()
    assert accepted(NearBest(1.0), p, one_hot(q)).tolist() == same
    drafted = [0, 3, 5, 1]
    for seed in range(200):
        ours, exact = (torch.Generator().manual_seed(seed) for _ in range(2))
        assert Lenient(1.0)(p[:5], q[:4], drafted, ours) == accept_exact(p[:5], q[:4], drafted, exact)


@pytest.mark.parametrize("greedy", [False, True])
def test_more_lenience_accepts_more_and_strays_further(greedy: bool) -> None:
    p, q = some(5), some(6)
    q = one_hot(q) if greedy else q
    rules = [lenient(lenience, GREEDY if greedy else SAMPLED) for lenience in LENIENCES]
    rates = [accepted(rule, p, q).mean().item() for rule in rules]
    far = [total_variation(rule, p, q).mean().item() for rule in rules]
    assert rates == sorted(rates) and rates[0] < rates[-1]
    assert far == sorted(far) and far[0] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("lenience", LENIENCES)
def test_the_argmax_is_kept_at_t_0_under_any_lenience(lenience: float) -> None:
    """What the inequality as printed gets wrong: with l < 1 it would refuse the argmax."""
    p = some(7)
    assert accepted(NearBest(lenience), p, one_hot(p)).tolist() == [1.0] * len(p)


def test_at_t_0_what_is_near_the_best_is_kept() -> None:
    rule, generator = NearBest(0.5), torch.Generator()
    p = torch.tensor([[0.5, 0.3, 0.2]])
    second, third = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.0, 0.0, 1.0]])
    assert accepted(rule, p, second).item() == 1.0  # 0.3 >= 0.25
    assert accepted(rule, p, third).item() == 0.0  # 0.2 < 0.25
    assert emitted(rule, p, second).tolist() == [[0.0, 1.0, 0.0]]
    assert total_variation(rule, p, second).item() == 1.0
    assert emitted(rule, p, third).tolist() == [[1.0, 0.0, 0.0]]
    p = p.expand(3, -1)
    assert rule(p, torch.cat([second, third]), [1, 2], generator) == Verdict.chain(1, 0)  # the argmax in its place
    assert rule(p, torch.cat([second, second]), [1, 1], generator) == Verdict.chain(2, 0)  # and after the last


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("lenience", [0.5, 0.1])
def test_the_rule_does_what_the_formulas_say(lenience: float) -> None:
    """Played many times: each share is off by more than 5 standard errors once in 10^6 runs."""
    rule: TokenRule = Lenient(lenience)
    p, q = some(8, rows=1), some(9, rows=1)
    plays = 20_000
    generator = torch.Generator().manual_seed(1)
    drafted = torch.multinomial(q[0], plays, replacement=True, generator=generator).tolist()
    rows = torch.cat([p, p])
    verdicts = [rule(rows, q, [token], generator) for token in drafted]
    first = [token if verdict.accepted else verdict.token for token, verdict in zip(drafted, verdicts, strict=True)]
    shares = torch.tensor(first).bincount(minlength=p.shape[-1]) / plays
    expected = emitted(rule, p, q)[0]
    assert ((shares - expected).abs() <= 5 * (expected * (1 - expected) / plays).sqrt()).all()
    rate = accepted(rule, p, q).item()
    kept = sum(verdict.accepted for verdict in verdicts) / plays
    assert kept == pytest.approx(rate, abs=5 * (rate * (1 - rate) / plays) ** 0.5)


def test_along_a_text() -> None:
    target, draft = ToyModel(random_table(1)), ToyModel(random_table(2))
    for sampling in (GREEDY, SAMPLED):
        rules = {f"{lenience:g}": lenient(lenience, sampling) for lenience in LENIENCES}
        (found,) = agreements(target, [ModelDraft(draft, VOCABULARY)], PROMPT, [1, 2, 1, 0], sampling, rules)
        assert found.under["1"] == pytest.approx(found.beta)
        assert found.total_variation["1"] == pytest.approx([0.0] * 4, abs=1e-6)
        assert sum(found.under["0.1"]) >= sum(found.beta)
        assert found.at("0.1").ratio == found.under["0.1"] == found.at("0.1").beta


def test_at_t_0_p_is_compared_before_argmax() -> None:
    model = EagerModel(network("gpt2", 4), 40, frozenset())
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    warm = standardise(logits, before_argmax(Sampling(0.0, top_k=5)), model.vocabulary_size)
    assert warm == pytest.approx(standardise(logits, Sampling(1.0, top_k=5), 40))
    assert ((warm > 0).sum(-1) == 5).all()
    assert before_argmax(Sampling(0.7)) == Sampling(0.7)


def test_a_record_says_alpha_and_distance_for_each_lenience() -> None:
    prompts: list[Any] = [
        {
            "prompt": "a",
            "prompt_tokens": 1,
            "beta": [1.0, 0.0],
            "lenient": {"0.5": 1.5},
            "total_variation": {"0.5": 0.2},
        },
        {
            "prompt": "b",
            "prompt_tokens": 1,
            "beta": [1.0, 1.0],
            "lenient": {"0.5": 2.0},
            "total_variation": {"0.5": 0.0},
        },
    ]
    one, half = under_lenience(prompts)
    assert (one["lenience"], one["alpha"], one["total_variation"]) == (1.0, 0.75, 0.0)
    assert (half["lenience"], half["alpha"], half["total_variation"]) == (0.5, 0.875, pytest.approx(0.05))
    assert half["alpha_low"] is not None and half["alpha_high"] is not None
    assert 0 < half["alpha_low"] < 0.875 < half["alpha_high"] < 1
