"""SpecDec's relaxed rule: what it accepts, that beta 1 and tau 0 are Algorithm 1, and faults in its two comparisons."""

import math
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import TokenRule, Verdict
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.lenient import NearBest
from specbench.algorithm.acceptance.rules.top_beta import TopBeta
from specbench.analysis.acceptance.agreement import accepted, emitted, total_variation
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling, before_argmax
from tests.support.decode import speculative
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, random_table

GREEDY = Sampling(0.0)
P = torch.tensor([[0.5, 0.25, 0.125, 0.0625, 0.0625]])
LN2 = math.log(2)


def accepts(rule: TokenRule) -> list[int]:
    return rule.accept_probability(P, P, P)[0].int().tolist()


@pytest.mark.parametrize(
    ("beta", "tau", "expected"),
    [
        (1, 0.0, [1, 0, 0, 0, 0]), (1, 9.0, [1, 0, 0, 0, 0]), (9, 0.0, [1, 0, 0, 0, 0]), (3, 9.0, [1, 1, 1, 0, 0]),
        (9, LN2, [1, 1, 0, 0, 0]), (9, LN2 - 1e-3, [1, 0, 0, 0, 0]), (3, 2 * LN2, [1, 1, 1, 0, 0]),
        (4, 9.0, [1, 1, 1, 1, 1]),  # the last two share a rank
    ],
)  # fmt: skip
def test_a_token_must_be_among_the_best_and_near_the_best(beta: int, tau: float, expected: list[int]) -> None:
    assert accepts(TopBeta(beta, tau)) == expected


def test_strict_and_loose_comparisons_are_caught() -> None:
    """The planted faults: a strict one rejects the argmax at beta 1, tau 0, a loose one accepts the second token."""

    class Above(TopBeta):
        def accept_probability(self, p_LK, q_LK, p_LV):  # type: ignore[no-untyped-def]
            return (p_LK > p_LV.topk(self.beta).values[..., -1:]).float()

    class OneMore(TopBeta):
        def accept_probability(self, p_LK, q_LK, p_LV):  # type: ignore[no-untyped-def]
            return TopBeta(self.beta + 1, 9.0).accept_probability(p_LK, q_LK, p_LV)

    assert accepts(Above(1, 0.0)) == [0] * 5 and accepts(OneMore(1, 0.0)) == [1, 1, 0, 0, 0]
    p, q, drafted = rows(seed=1)
    for rule in (Above(1, 0.0), OneMore(1, 0.0)):
        assert any(played(rule, p, q, one) != exact(p, q, one) for one in drafted)


def rows(seed: int) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    """p [4, 5], q [3, 5], and proposals whose tokens are often the argmax."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(4, 5, generator=generator)
    best = p.argmax(-1).tolist()
    drafted = [[*best[:3]], [best[0], best[1], 4], [best[0], 1, best[2]], [0, 1, 2], [3, best[1], best[2]]]
    return p / p.sum(-1, keepdim=True), torch.full((3, 5), 0.2), drafted


def played(rule: TokenRule, p: torch.Tensor, q: torch.Tensor, drafted: list[int]) -> Verdict:
    return rule(p, q, drafted, torch.Generator())


def exact(p: torch.Tensor, q: torch.Tensor, drafted: list[int]) -> Verdict:
    """Algorithm 1 at T = 0: both rows are one-hot."""
    p = torch.zeros_like(p).scatter_(-1, p.argmax(-1, keepdim=True), 1.0)
    q = torch.nn.functional.one_hot(torch.tensor(drafted), q.shape[-1]).float()
    return accept_exact(p, q, drafted, torch.Generator())


@pytest.mark.parametrize(("beta", "tau"), [(1, 0.0), (1, 5.0), (5, 0.0)])
def test_beta_1_or_tau_0_is_algorithm_1_token_by_token(beta: int, tau: float) -> None:
    for seed in range(20):
        p, q, drafted = rows(seed)
        for one in drafted:
            assert played(TopBeta(beta, tau), p, q, one) == exact(p, q, one)


def test_without_beta_it_is_lenience_and_the_formulas_follow_both_keys() -> None:
    p, _, _ = rows(3)
    q = torch.eye(5)[[1, 4, 0, 2]]
    for tau in (0.1, 0.5, 2.0):
        for formula in (accepted, emitted, total_variation):
            assert torch.equal(formula(TopBeta(5, tau), p, q), formula(NearBest(math.exp(-tau)), p, q))
    rates = [accepted(TopBeta(beta, 9.0), p, p).mean().item() for beta in (1, 2, 3, 5)]
    assert rates == sorted(rates) and rates[0] < rates[-1] == pytest.approx(1.0)


def test_in_the_loop_the_text_is_the_targets_own_only_where_the_rule_is_exact() -> None:
    target, draft = ToyModel(random_table(1)), ModelDraft(ToyModel(random_table(2)), VOCABULARY)

    def text(accept: TokenRule | None) -> list[int]:
        told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 12, "generator": torch.Generator()}
        if accept is not None:
            told |= {"accept": accept, "compared": before_argmax(GREEDY)}
        return speculative(target, draft, PROMPT, gamma=3, **told).tokens

    assert text(TopBeta(1, 0.0)) == text(TopBeta(3, 0.0)) == text(None) != text(TopBeta(3, 3.0))
