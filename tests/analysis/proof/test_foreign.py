"""Foreign tokens: found at the rate that is named, and not in tokens of the target.

Statistical: seeds are fixed.
"""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from specbench.analysis.proof import Proof, Statistic
from specbench.analysis.proof.certificate import sampled_certificate
from specbench.analysis.proof.foreign import CHANCE, ONE_IN, Foreign
from specbench.analysis.proof.kinds import Side, verdict

WORDS, PLACES, RUNS = 500, 1200, 100


def rows(width: float = 3.0, seed: int = 1) -> Tensor:
    """Distributions of places, as sharp as a language model's."""
    logits_LV = width * torch.randn(PLACES, WORDS, generator=torch.Generator().manual_seed(seed))
    return logits_LV.softmax(-1)


def files(p_LV: Tensor, often: int | None, runs: int = RUNS) -> Iterator[Foreign]:
    """The test of files of draws from p, with one token in `often` in place of its own."""
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        tokens_L = torch.multinomial(p_LV, 1, generator=generator).squeeze(-1)
        if often is not None:
            is_other_L = torch.rand(len(p_LV), generator=generator) < 1 / often
            others_L = torch.randint(p_LV.shape[-1], (len(p_LV),), generator=generator)
            tokens_L = torch.where(is_other_L, others_L, tokens_L)
        one = Foreign()
        for start in range(0, len(p_LV), 64):
            one.add(p_LV[start : start + 64], tokens_L[start : start + 64])
        yield one


def test_the_product_by_hand() -> None:
    one = Foreign()
    one.add(torch.tensor([[0.9, 0.1, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]), torch.tensor([1, 2]))
    half = ONE_IN.index(2)
    assert one.nats[half] == pytest.approx(math.log(0.5 + 0.5 / (4 * 0.1)) + math.log(0.5 + 0.5))
    assert one.inside[half] == pytest.approx(math.log(1 - 0.5 * 0.5))
    mean = math.log(0.5 + 0.5 / 3.6) * (0.9 + 0.25) / 2 + math.log(1.75) * (0.1 + 0.75) / 2  # the second is log 1
    assert one.means[half] == pytest.approx(mean, abs=1e-6)
    assert not one.failed and one.one_in is None
    assert Foreign().one_in is None and not Foreign().failed


def test_what_leaves_nothing_to_chance_has_a_power() -> None:
    """With top-k 1 the variance is 0 except for rounding, which may be negative."""
    p_LV = torch.eye(500)[torch.arange(64) % 7]
    one = Foreign()
    one.add(p_LV, p_LV.argmax(-1))
    assert min(one.variances) >= 0
    assert one.one_in == max(number for number in ONE_IN if (1 - 0.998 / number) ** 64 < 0.1)


def test_a_low_temperature_has_a_power() -> None:
    """At some tokens p is above 0 and 1 / p infinite in fp32; the colder, the rarer a fault that shows."""
    generator = torch.Generator().manual_seed(0)
    logits_LV = 4 * torch.randn(300, 20_000, generator=generator)
    found = []
    for temperature in (1.0, 0.3):
        p_LV = (logits_LV / temperature).softmax(-1)
        one = Foreign()
        one.add(p_LV, torch.multinomial(p_LV, 1, generator=generator).squeeze(-1))
        assert all(map(math.isfinite, [*one.means, *one.variances, *one.nats]))
        found.append(one.one_in)
    assert 0 < (p_LV[p_LV > 0]).min() < 1e-43, "the case that is tested"
    assert found[0] is not None and found[1] is not None and found[1] >= found[0]


@pytest.mark.statistical
def test_foreign_tokens_are_found_at_the_rate_that_is_named() -> None:
    """At least 82 of 100, which a test with a power of nine in ten misses for one seed in 100."""
    p_LV = rows()
    (right,) = files(p_LV, None, runs=1)
    assert right.one_in is not None and 10 <= right.one_in <= 200
    assert sum(one.failed for one in files(p_LV, right.one_in)) >= 0.82 * RUNS
    assert sum(one.failed for one in files(p_LV, 20 * right.one_in)) < 0.5 * RUNS, "the rate is no guess of any fault"


@pytest.mark.statistical
@pytest.mark.parametrize("width", [1.0, 3.0, 6.0])
def test_tokens_of_the_target_are_not_foreign(width: float) -> None:
    """The product has mean 1: above `CHANCE` in fewer than one of so many files, above 10 in fewer than one of 10."""
    found = [one.total for one in files(rows(width), None)]
    assert max(found) < math.log(CHANCE)
    assert sum(one > math.log(10) for one in found) <= 0.2 * RUNS


@pytest.mark.statistical
def test_few_tokens_that_p_cannot_give_are_within_what_is_named() -> None:
    """With top-k any foreign token is outside but for k of V: such a token is a fault by itself."""
    p_LV = torch.where(rows() >= rows().topk(20).values[:, -1:], rows(), 0.0)
    p_LV /= p_LV.sum(-1, keepdim=True)
    (one,) = files(p_LV, None, runs=1)
    assert one.one_in == max(number for number in ONE_IN if (1 - 0.96 / number) ** PLACES < 0.1)


@pytest.mark.statistical
def test_a_file_with_foreign_tokens_fails_and_one_without_is_another() -> None:
    fine = Statistic(1.0, 0.3)
    proof = Proof(PLACES, fine, fine, fine, fine, 0.05, 0)
    (bad,), (good,) = files(rows(), 20, runs=1), files(rows(seed=2), None, runs=1)
    wrong, right = (sampled_certificate(proof, 0.1, foreign=one) for one in (bad, good))
    assert (wrong.verdict, right.verdict) == ("not the target's", "the target's")
    assert "could be any token of the vocabulary" in wrong.reason
    assert sampled_certificate(proof, 0.1, "strings", foreign=bad).verdict == "cannot tell"
    assert verdict(Side(wrong), Side(right), 0.1).kind == "a fault of speculation"
    assert verdict(Side(wrong), Side(wrong), 0.1).kind == "another distribution"
    (few,) = files(rows()[:60], None, runs=1)
    assert not few.is_without(bad), "too few tokens to speak against it"
