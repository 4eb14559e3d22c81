"""The proof of a sampled run catches planted faults, and its power is what it says.

Statistical: seeds are fixed. That a fault is caught in the tokens given here fails for less than one seed in ten.
"""

import math

import numpy as np
import pytest
import torch

from specbench.analysis.proof import LIMIT, SCORES
from specbench.analysis.proof.evidence import evidence
from tests.support.decode import autoregressive
from tests.support.faults import DRAFT, FAULTS, LENGTH, ONE, TARGET, TOP_4, WIDE, honest, proof_of, wide, written
from tests.support.toy import ToyModel


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str) -> None:
    options, first, tokens = FAULTS[fault]
    sampling = TOP_4 if first == "outside" else ONE
    proof = proof_of(written(texts=tokens // LENGTH, seed=7, **options), sampling=sampling)  # type: ignore[arg-type]
    assert proof.failed and proof.tokens == tokens
    if first == "outside":
        assert proof.outside > 0
    else:
        assert abs(getattr(proof, first).z) == max(abs(getattr(proof, score).z) for score in SCORES)


@pytest.mark.full
@pytest.mark.statistical
def test_the_planted_rule_without_its_fault_passes() -> None:
    assert not proof_of(written(honest, texts=500, seed=7, per_text=True)).failed


@pytest.mark.full
@pytest.mark.statistical
def test_the_power_is_what_it_says() -> None:
    """A target that is tilted by the total variation named as the power is shown nine times in ten: between 82% and 97%
    of 100 runs, which chance leaves for one seed in 100."""
    runs, texts = 100, 40
    right = proof_of(written(texts=texts))
    assert right.power is not None
    shown, far = 0, []
    log_table = TARGET.table_VVV.log()
    variance = sum(evidence(TARGET, DRAFT, WIDE, text, ONE).likelihood.variance for text in written(texts=texts))
    tilted = wide(log_table * (1 + (LIMIT + 1.2816) / math.sqrt(variance)))
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        sample = [
            autoregressive(tilted, WIDE, sampling=ONE, max_new_tokens=LENGTH, generator=generator).tokens
            for _ in range(texts)
        ]
        proof = proof_of(sample)
        assert proof.likelihood is not None
        shown += abs(proof.likelihood.z) > LIMIT
        if seed == 0:
            far = [_total_variation(tilted, text) for text in sample]
    assert 0.82 <= shown / runs <= 0.97
    assert right.power == pytest.approx(float(np.mean(far)), rel=0.15)


def _total_variation(tilted: ToyModel, text: list[int]) -> float:
    rows = [model.start(WIDE).extend([0, *text[:-1]]).exp() for model in (TARGET, tilted)]
    return float((rows[0] - rows[1]).abs().sum(-1).mean() / 2)
