"""Lenience on exact toy distributions: A.5's alpha(l) and bound, our reading of its rule at T = 0, and the distance."""

import pytest
import torch
from networks import network
from toy import PROMPT, VOCABULARY, ToyModel, random_table

from specbench.acceptance import residual
from specbench.drafts import ModelDraft
from specbench.measure.agreement import agreements
from specbench.measure.lenience import accepted, compared, emitted, strayed
from specbench.measure.summary import under_lenience
from specbench.models.eager import EagerModel
from specbench.sampling import Sampling

LENIENCES = (1.0, 0.5, 0.3, 0.1)


def some(seed: int, rows: int = 20, tokens: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(rows, tokens, generator=generator) ** 3 + 1e-4
    return table / table.sum(-1, keepdim=True)


def one_hot(p_LV: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(p_LV).scatter_(-1, p_LV.argmax(-1, keepdim=True), 1.0)


def test_alpha_under_lenience_is_the_definition_of_a5() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.1, 0.1, 0.8]])
    assert accepted(p, q, 1.0, greedy=False).item() == pytest.approx(0.1 + 0.1 + 0.2)
    assert accepted(p, q, 0.5, greedy=False).item() == pytest.approx(0.1 + 0.1 + 0.4)
    assert accepted(p, q, 0.25, greedy=False).item() == pytest.approx(1.0)


@pytest.mark.parametrize("lenience", LENIENCES)
def test_what_comes_out_is_a_distribution_and_no_token_gets_more_than_p_over_l(lenience: float) -> None:
    p, q = some(1), some(2)
    out = emitted(p, q, lenience, greedy=False)
    assert out.sum(-1).tolist() == pytest.approx([1.0] * len(p), abs=1e-5)
    assert (out <= p / lenience + 1e-6).all()


def test_lenience_one_changes_nothing() -> None:
    p, q = some(3), some(4)
    assert emitted(p, q, 1.0, greedy=False) == pytest.approx(p, abs=1e-6)
    assert strayed(p, q, 1.0, greedy=False).tolist() == pytest.approx([0.0] * len(p), abs=1e-6)
    assert accepted(p, one_hot(q), 1.0, greedy=True).tolist() == (p.argmax(-1) == q.argmax(-1)).float().tolist()


@pytest.mark.parametrize("greedy", [False, True])
def test_more_lenience_accepts_more_and_strays_further(greedy: bool) -> None:
    p, q = some(5), some(6)
    q = one_hot(q) if greedy else q
    rates = [accepted(p, q, lenience, greedy).mean().item() for lenience in LENIENCES]
    far = [strayed(p, q, lenience, greedy).mean().item() for lenience in LENIENCES]
    assert rates == sorted(rates) and rates[0] < rates[-1]
    assert far == sorted(far) and far[0] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("lenience", LENIENCES)
def test_the_argmax_is_kept_at_t_0_under_any_lenience(lenience: float) -> None:
    """What the inequality as printed gets wrong: with l < 1 it would refuse the argmax."""
    p = some(7)
    assert accepted(p, one_hot(p), lenience, greedy=True).tolist() == [1.0] * len(p)


def test_at_t_0_what_is_near_the_best_is_kept() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]])
    second, third = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.0, 0.0, 1.0]])
    assert accepted(p, second, 0.5, greedy=True).item() == 1.0  # 0.3 >= 0.25
    assert accepted(p, third, 0.5, greedy=True).item() == 0.0  # 0.2 < 0.25
    assert emitted(p, second, 0.5, greedy=True).tolist() == [[0.0, 1.0, 0.0]]
    assert strayed(p, second, 0.5, greedy=True).item() == 1.0
    assert emitted(p, third, 0.5, greedy=True).tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("lenience", [0.5, 0.1])
def test_the_formula_is_what_the_rule_does(lenience: float) -> None:
    """The rule itself, played many times: keep x while r q(x) < p(x) / l, else draw from norm(max(0, p - l q)).
    Each share is off by more than 5 standard errors once in 10^6 runs."""
    p, q = some(8, rows=1)[0], some(9, rows=1)[0]
    plays = 200_000
    generator = torch.Generator().manual_seed(1)
    drafted = torch.multinomial(q, plays, replacement=True, generator=generator)
    kept = torch.rand(plays, generator=generator) * q[drafted] < p[drafted] / lenience
    instead = torch.multinomial(residual(p, lenience * q), plays, replacement=True, generator=generator)
    shares = torch.where(kept, drafted, instead).bincount(minlength=len(p)) / plays
    expected = emitted(p[None], q[None], lenience, greedy=False)[0]
    assert ((shares - expected).abs() <= 5 * (expected * (1 - expected) / plays).sqrt()).all()
    rate = accepted(p[None], q[None], lenience, greedy=False).item()
    assert kept.float().mean().item() == pytest.approx(rate, abs=5 * (rate * (1 - rate) / plays) ** 0.5)


def test_along_a_text() -> None:
    target, draft = ToyModel(random_table(1)), ToyModel(random_table(2))
    for sampling in (Sampling(0.0), Sampling(1.0)):
        (found,) = agreements(target, [ModelDraft(draft, VOCABULARY)], PROMPT, [1, 2, 1, 0], sampling, LENIENCES)
        assert found.lenient[1.0] == pytest.approx(found.beta)
        assert found.strayed[1.0] == pytest.approx([0.0] * 4, abs=1e-6)
        assert sum(found.lenient[0.1]) >= sum(found.beta)


def test_at_t_0_p_is_compared_before_argmax() -> None:
    model = EagerModel(network("gpt2", 4), 40, frozenset())
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    warm = compared(logits, Sampling(0.0, top_k=5), model.vocabulary_size)
    assert warm == pytest.approx(compared(logits, Sampling(1.0, top_k=5), 40))
    assert ((warm > 0).sum(-1) == 5).all()


def test_a_record_says_alpha_and_distance_for_each_lenience() -> None:
    prompts = [
        {"beta": [1.0, 0.0], "lenient": {"0.5": 1.5}, "strayed": {"0.5": 0.2}},
        {"beta": [1.0, 1.0], "lenient": {"0.5": 2.0}, "strayed": {"0.5": 0.0}},
    ]
    one, half = under_lenience(prompts, 200, 0)
    assert (one["lenience"], one["alpha"], one["strayed"]) == (1.0, 0.75, 0.0)
    assert (half["lenience"], half["alpha"], half["strayed"]) == (0.5, 0.875, pytest.approx(0.05))
    assert half["alpha_low"] == 0.75 and half["alpha_high"] == 1.0
