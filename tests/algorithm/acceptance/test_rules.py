"""Every rule on the toy model, by enumeration: the distribution of whole texts, and the tokens of a pass."""

import pytest
import torch

from specbench.algorithm.acceptance.base import residual
from specbench.algorithm.acceptance.rules.block import accept_block, chances
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.lenient import Lenient, NearBest
from specbench.algorithm.acceptance.rules.typical import Typical
from specbench.sampling import Sampling, before_argmax
from tests.support.laws import Law, Outcomes, block, token_by_token, total_variation
from tests.support.toy import EOS, VOCABULARY, ToyModel, exact, random_table

TARGET = ToyModel(random_table(1, zeros=True))
NEAR = ToyModel(0.6 * TARGET.table_VVV + 0.4 * random_table(2))
FAR = ToyModel(random_table(3))
PAIRS = {
    "near": (TARGET, NEAR),
    "far": (TARGET, FAR),
    "no zeros": (ToyModel(random_table(6)), ToyModel(random_table(16))),
}
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
EXACT = token_by_token(Lenient(1.0))
LENGTH = 3


def from_the_target(
    outcomes: Outcomes, sampling: Sampling, pair: str = "near", compared: Sampling | None = None
) -> float:
    """Total variation of whole texts from the target's own."""
    target, draft = PAIRS[pair]
    law = Law(target, draft, outcomes, 2, sampling, compared).texts(LENGTH)
    assert sum(law.values()) == pytest.approx(1, abs=1e-5)
    return total_variation(law, exact(target, sampling, LENGTH))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("sampling", [SAMPLED, Sampling(0.7, top_k=3), GREEDY], ids=["T=1", "top-k", "T=0"])
def test_exact_and_block_leave_the_distribution_as_it_is(sampling: Sampling, pair: str) -> None:
    for outcomes in (EXACT, block):
        assert from_the_target(outcomes, sampling, pair) == pytest.approx(0, abs=1e-5)


def test_a_block_that_draws_from_algorithm_1s_residual_is_caught() -> None:
    def wrong(p_GV, q_GV, drafted):  # type: ignore[no-untyped-def]
        for kept, chance, _ in block(p_GV, q_GV, drafted):
            yield kept, chance, residual(p_GV[kept], q_GV[kept]) if kept < len(drafted) else p_GV[kept]

    assert from_the_target(wrong, SAMPLED, "no zeros") > 0.01


@pytest.mark.parametrize("outcomes", [EXACT, block], ids=["exact", "block"])
def test_a_proposal_may_end_after_an_unsure_token_and_not_before_it(outcomes: Outcomes) -> None:
    target, draft = PAIRS["far"]
    own = exact(target, SAMPLED, LENGTH)
    kept, dropped = (
        total_variation(Law(target, draft, outcomes, 2, SAMPLED, confidence=0.4, dropping=dropping).texts(LENGTH), own)
        for dropping in (False, True)
    )
    assert kept == pytest.approx(0, abs=1e-5)
    assert dropped > 0.01


def test_a_block_never_has_fewer_tokens_in_a_pass_and_somewhere_more() -> None:
    gained = []
    for target, draft in PAIRS.values():
        for gamma in (1, 2, 3):
            for text in ((), (1,), (2, 0)):
                more, less = (
                    Law(target, draft, outcomes, gamma, SAMPLED).tokens_per_pass(text) for outcomes in (block, EXACT)
                )
                assert more >= less - 1e-6
                if gamma == 1:  # a block of one token is that token
                    assert more == pytest.approx(less, abs=1e-6)
                gained.append(more - less)
    assert max(gained) > 0.02


def test_the_papers_example_of_a_block() -> None:
    """Sun et al., section 2: two tokens, p = (1/3, 2/3), q = (2/3, 1/3), gamma = 2: 10/9 drafted tokens are accepted
    one by one, 11/9 as a block."""
    p, q = torch.tensor([[1 / 3, 2 / 3]] * 3), torch.tensor([[2 / 3, 1 / 3]] * 2)
    for outcomes, expected in ((EXACT, 10 / 9), (block, 11 / 9)):
        mean = sum(
            float(q[0, a] * q[1, b]) * chance * kept
            for a in (0, 1)
            for b in (0, 1)
            for kept, chance, _ in outcomes(p, q, (a, b))
        )
        assert mean == pytest.approx(expected, abs=1e-6)


def test_a_block_stays_where_one_by_one_it_would_not() -> None:
    """The first token is over-drafted, the second makes up for it."""
    p = torch.tensor([[0.3, 0.7], [0.9, 0.1], [0.5, 0.5]])
    q = torch.tensor([[0.6, 0.4], [0.3, 0.7]])
    h, weights = chances(p, q, torch.tensor([0, 0]), 2)
    assert weights.tolist() == pytest.approx([0.5, 1.0])  # 0.3 / 0.6, then min(1, 0.5 * 0.9 / 0.3)
    assert h.tolist() == pytest.approx([0.15 / (0.15 + 0.5), 1.0])  # sum_x max(0, 0.5 p - q) = 0.45 - 0.3
    shared = torch.Generator().manual_seed(0)
    assert all(accept_block(p, q, [0, 0], shared).accepted == 2 for _ in range(50))
    kept = [accept_exact(p, q, [0, 0], shared).accepted for _ in range(50)]
    assert min(kept) == 0 and max(kept) == 2


@pytest.mark.full
def test_a_block_played_many_times_does_what_its_chances_say() -> None:
    """Each share is off by more than 5 standard errors once in 10^6 runs."""
    generator, plays = torch.Generator().manual_seed(5), 4000
    p, q = TARGET.table_VVV[0, :3], FAR.table_VVV[0, :2]
    drafted = [int(torch.multinomial(row, 1, generator=generator)) for row in q]
    seen = torch.zeros(3, VOCABULARY)
    for _ in range(plays):
        verdict = accept_block(p, q, drafted, generator)
        seen[verdict.accepted, verdict.token] += 1
    for kept, chance, next_V in block(p, q, drafted):
        expected = chance * next_V
        assert ((seen[kept] / plays - expected).abs() <= 5 * (expected * (1 - expected) / plays).sqrt() + 1e-9).all()


def test_blocks_refuse_what_is_not_finite() -> None:
    for bad in (0, 1):
        p, q = torch.full((3, 4), 0.25), torch.full((2, 4), 0.25)
        p[bad] = torch.nan
        with pytest.raises(FloatingPointError, match="not finite"):
            accept_block(p, q, [1, 2], torch.Generator())


def test_lenience_strays_further_the_smaller_l_is() -> None:
    far = [from_the_target(token_by_token(Lenient(lenience)), SAMPLED) for lenience in (1.0, 0.5, 0.1)]
    assert far[0] == pytest.approx(0, abs=1e-5)
    assert 0.01 < far[1] < far[2] < 1
    greedy = [
        from_the_target(token_by_token(NearBest(lenience)), GREEDY, "far", before_argmax(GREEDY))
        for lenience in (1.0, 0.5, 0.01)
    ]
    assert greedy[0] == pytest.approx(0, abs=1e-6)
    assert greedy[0] <= greedy[1] <= greedy[2] == 1.0  # at T = 0 there is one text: it is the same or another


def test_typical_strays_at_t_1_and_not_at_t_0() -> None:
    rule = token_by_token(Typical(0.09, 0.3))
    assert from_the_target(rule, GREEDY) == pytest.approx(0, abs=1e-6)
    strict, loose = (from_the_target(token_by_token(Typical(epsilon, 0.9)), SAMPLED) for epsilon in (0.6, 0.05))
    assert 0.01 < loose < 1 and 0.01 < strict < 1


def test_typicals_bar_is_lower_where_the_target_is_unsure() -> None:
    rule = Typical(0.09, 0.3)
    sure, unsure = torch.tensor([[0.95, 0.05]]), torch.full((1, 20), 0.05)
    assert rule.accept_probability(sure, sure, sure).tolist() == [[1.0, 0.0]]  # min(0.09, 0.3 exp(-0.199)) = 0.09
    assert rule.accept_probability(unsure, unsure, unsure).all()  # 0.3 exp(-log 20) = 0.015
    one_hot = torch.tensor([[0.0, 1.0, 0.0]])
    assert rule.accept_probability(one_hot, one_hot, one_hot).tolist() == [[0.0, 1.0, 0.0]]


def test_typical_with_a_draft_it_always_refuses_is_the_target() -> None:
    class Refuse(Typical):
        def accept_probability(self, p_LK, q_LK, p_LV):  # type: ignore[no-untyped-def]
            return torch.zeros_like(p_LK)

    assert from_the_target(token_by_token(Refuse(0.09, 0.3)), SAMPLED, "far") == pytest.approx(0, abs=1e-5)


def test_the_enumeration_sees_ends_of_text() -> None:
    law = Law(TARGET, NEAR, EXACT, 2, SAMPLED).texts(LENGTH)
    assert all(text[-1] == EOS or len(text) == LENGTH for text in law)
