"""A sampled run proves itself: the sums are as defined, correct runs pass, rounding is distinguished from a fault.

Statistical: seeds are fixed. A right text fails one of the four tests for one seed in 2,500 at the most; a set of right
runs fails the test of normality for one seed in 1,000.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.analysis.acceptance import agreement
from specbench.analysis.proof import LIMIT, SCORES, Proof, prove, upper_tail
from specbench.analysis.proof.evidence import evidence
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft
from specbench.records.prompt_sums import Evidence, Sums
from specbench.sampling import Sampling, standardise
from tests.support.around import Around
from tests.support.decode import autoregressive, speculative
from tests.support.faults import DRAFT, LENGTH, ONE, TARGET, WIDE, WORDS, proof_of, raw, written
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, exact, random_table

SMALL_DRAFT = ModelDraft(ToyModel(random_table(2)), VOCABULARY)


# What the sums are.


@pytest.mark.parametrize("sampling", [ONE, Sampling(0.6), Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.8)])
def test_scores_are_martingales_with_the_stated_moments(sampling: Sampling) -> None:
    """Over all texts of a small model, by enumeration: mean 0, and the mean of the square is that of the variances."""
    target = ToyModel(random_table(1, zeros=True))
    means, squares, variances = (dict.fromkeys(SCORES, 0.0) for _ in range(3))
    for text, probability in exact(target, sampling, 4).items():
        if probability > 0:
            found = evidence(target, SMALL_DRAFT, PROMPT, text, sampling)
            assert found.outside == 0 and found.tokens == len(text)
            for name in SCORES:
                sums: Sums = getattr(found, name)
                means[name] += probability * sums.sum
                squares[name] += probability * sums.sum**2
                variances[name] += probability * sums.variance
    for name in SCORES:
        assert means[name] == pytest.approx(0, abs=1e-6)
        assert squares[name] == pytest.approx(variances[name], rel=1e-5) and squares[name] > 0


def test_the_moments_of_one_token() -> None:
    p_V = TARGET.table_VVV[0, 0].double()
    score_V = p_V.log() - (p_V * p_V.log()).sum()
    liked_V = (DRAFT.model.table_VVV[0, 0] / p_V).clamp(max=1)  # type: ignore[attr-defined]
    liked_V = liked_V - (p_V * liked_V).sum()
    place_V = p_V.cumsum(-1) - p_V / 2 - 0.5
    for token in (0, 3, WORDS - 1):
        found = evidence(TARGET, DRAFT, WIDE, [token], ONE)
        for score, sums in ((score_V, found.likelihood), (liked_V, found.draft), (place_V, found.order)):
            wanted = (float(score[token]), float((p_V * score**2).sum()), float((p_V * score**3).sum()))
            assert (sums.sum, sums.variance, sums.third) == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        assert found.deviation == pytest.approx(float((p_V * score_V.abs()).sum()), rel=1e-5)
        assert found.echo == Sums()  # nothing came before


def test_chunks_do_not_change_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = written(texts=1)
    whole = evidence(TARGET, DRAFT, WIDE, text, ONE)
    monkeypatch.setattr(agreement, "CHUNK", 7)
    parts = evidence(TARGET, DRAFT, WIDE, text, ONE)
    for name in SCORES:
        assert getattr(parts, name).sum == pytest.approx(getattr(whole, name).sum, rel=1e-4)


def test_where_nothing_is_drawn_there_is_no_z_and_a_wrong_token_fails() -> None:
    greedy = Sampling(1.0, top_k=1)
    generator = torch.Generator().manual_seed(0)
    text = autoregressive(TARGET, WIDE, sampling=greedy, max_new_tokens=12, generator=generator).tokens
    proof = proof_of([text], sampling=greedy)
    assert (*proof.tests, proof.power, proof.failed) == (*[None] * 5, False)
    assert proof_of([[*text[:5], (text[5] + 1) % WORDS]], sampling=greedy).failed


def test_a_record_without_the_sums_has_no_proof() -> None:
    found = raw(evidence(TARGET, DRAFT, WIDE, [1, 2, 3], ONE))
    assert prove([found]) is not None and prove([found, {}]) is None and prove([]) is None


def test_a_distribution_that_is_not_finite_is_told() -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        evidence(ToyModel(torch.full((4, 4, 4), torch.nan)), SMALL_DRAFT, PROMPT, [1, 2], ONE)


# Tails.


@pytest.mark.parametrize("skewness", [-1.5, -0.5, -1e-3, 0.0, 1e-6, 0.3, 1.0])
def test_the_tail_is_that_of_pearsons_third_law(skewness: float) -> None:
    for z in (-5.0, -3.0, -1.0, 0.0, 0.5, 2.0, 4.0):
        law = stats.norm.sf(z) if abs(skewness) < 1e-5 else stats.pearson3.sf(z, skewness)
        assert upper_tail(z, skewness) == pytest.approx(law, rel=0.01)


def test_beyond_the_end_of_the_law() -> None:
    assert upper_tail(5.0, -1.0) == 0 and upper_tail(-5.0, 1.0) == 1


def drawn(p_V: np.ndarray, tokens: int, runs: int, seed: int) -> list[Proof | None]:
    """Proofs of right runs of so many tokens, all drawn from one distribution; only of those with |z| > 4."""
    score_V = np.log(p_V) - (p_V * np.log(p_V)).sum()
    variance, third = (p_V * score_V**2).sum(), (p_V * score_V**3).sum()
    found = []
    for total in np.random.default_rng(seed).choice(score_V, (runs, tokens), p=p_V).sum(1):
        if abs(total) > LIMIT * math.sqrt(tokens * variance):
            likelihood = Sums(total, tokens * variance, tokens * third)
            found.append(prove([{"proof": Evidence(tokens, likelihood, deviation=1.0)}]))
    return found


@pytest.mark.statistical
def test_few_tokens_of_a_heavy_tailed_distribution_do_not_cry_wolf() -> None:
    """On 10 tokens of a Zipf-like law |z| > 4 is about 20 times as frequent as under the normal; failing is not more
    frequent than it says."""
    p_V = np.arange(1, 2001, dtype=float) ** -2.0
    runs = 400_000
    beyond = drawn(p_V / p_V.sum(), 10, runs, seed=1)
    assert len(beyond) / runs > 10 * 2 * upper_tail(LIMIT, 0.0)
    assert sum(proof is not None and proof.failed for proof in beyond) / runs < 1e-4


# Right runs.

RIGHT = {
    "exact": {},
    "block": {"accept": accept_block},
    "top-k and top-p": {"sampling": Sampling(1.2, top_k=10, top_p=0.9)},
    "T=0.7": {"sampling": Sampling(0.7), "gamma": 2},
}


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize("name", RIGHT)
def test_two_hundred_right_runs_give_a_standard_normal_z(name: str) -> None:
    """Kolmogorov-Smirnov against N(0, 1) with nothing fitted: a false alarm for one seed in 1,000."""
    options = RIGHT[name]
    runs = 200 if name == "exact" else 60
    proofs = [
        proof_of(written(texts=4, seed=seed, **options), sampling=options.get("sampling", ONE))  # type: ignore[arg-type]
        for seed in range(1, runs + 1)
    ]
    assert sum(proof.failed for proof in proofs) <= 1  # two are one seed in 300
    for score in SCORES:
        z = [getattr(proof, score).z for proof in proofs]
        assert stats.kstest(z, "norm").pvalue > 1e-3, score
        assert stats.kstest([getattr(proof, score).p for proof in proofs], "uniform").pvalue > 1e-3, score
    if name == "exact":
        z = [proof.likelihood.z for proof in proofs if proof.likelihood]
        assert stats.shapiro(z).pvalue > 1e-3


# Rounding.


class Rounded(ToyModel):
    """A target whose logits move a little with the number of tokens that are read at once, as in bf16."""

    size = 0.02

    def start(self, prompt: Prompt):  # type: ignore[no-untyped-def]
        return RoundedSession(super().start(prompt), self.size)


class RoundedSession(Around):
    def __init__(self, inner, size: float) -> None:  # type: ignore[no-untyped-def]
        super().__init__(inner)
        self.size = size

    @property
    def length(self) -> int:
        return int(self.inner.length)

    def extend(self, tokens, parents=None):  # type: ignore[no-untyped-def]
        logits_LV = self.inner.extend(tokens, parents)
        generator = torch.Generator().manual_seed(1000 * self.length + len(tokens))
        return logits_LV + self.size * torch.randn(logits_LV.shape, generator=generator)


@pytest.mark.parametrize("sampling", [Sampling(1.0, top_k=3), Sampling(1.0, top_p=0.7), Sampling(0.8, 6, 0.8)])
def test_a_token_at_the_edge_of_the_support_is_put_down_to_rounding(sampling: Sampling) -> None:
    target = Rounded(TARGET.table_VVV)
    target.vocabulary_size, target.eos_ids = WORDS, frozenset()
    texts = []
    for index in range(60):
        generator = torch.Generator().manual_seed(index)
        texts.append(
            speculative(
                target, DRAFT, WIDE, gamma=4, sampling=sampling, max_new_tokens=LENGTH, generator=generator
            ).tokens
        )
    rows = [standardise(target.start(WIDE).extend([0, *text[:-1]]), sampling, WORDS) for text in texts]
    at_the_edge = [
        bool((row.gather(-1, torch.tensor(text)[:, None]) == 0).any()) for row, text in zip(rows, texts, strict=True)
    ]
    assert any(at_the_edge)
    proof = proof_of(texts, target, sampling)
    assert proof.outside == 0 and not proof.failed
    unlikely = [[*text[:-1], int(row[-1].argmin())] for row, text in zip(rows, texts, strict=True)]
    assert proof_of(unlikely, target, sampling).outside > len(texts) / 2
