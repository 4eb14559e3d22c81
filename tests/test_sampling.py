"""Standardised sampling, against transformers' own warpers where they have one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specbench.sampling import Sampling, draw, most_likely, standardise


def test_padding_logits_are_cut_off() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0, 99.0, 99.0]])
    for temperature in (0.0, 1.0):
        row = standardise(logits, Sampling(temperature), 3)
        assert row.shape == (1, 3)
        assert row.sum().item() == pytest.approx(1)
    assert standardise(logits, Sampling(0.0), 3).tolist() == [[0.0, 1.0, 0.0]]


def test_temperature_zero_is_one_hot_on_the_first_of_equals() -> None:
    assert standardise(torch.tensor([[3.0, 5.0, 5.0]]), Sampling(0.0), 3).tolist() == [[0.0, 1.0, 0.0]]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.sampled_from([None, 1, 3, 40]),
    st.sampled_from([None, 0.1, 0.5, 0.95]),
)
def test_it_is_what_transformers_samples_from(
    seed: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    logits = 4 * torch.randn(3, 20, generator=torch.Generator().manual_seed(seed))
    warped = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        warped = TopKLogitsWarper(top_k)(None, warped)
    if top_p is not None:
        warped = TopPLogitsWarper(top_p)(None, warped)
    ours = standardise(logits, Sampling(temperature, top_k, top_p), 20)
    assert torch.allclose(ours, warped.softmax(-1), atol=1e-6)


def test_bf16_logits_give_fp32_probabilities() -> None:
    assert standardise(torch.zeros(1, 4, dtype=torch.bfloat16), Sampling(1.0), 4).dtype == torch.float32


DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.full
@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(DTYPES), st.integers(1, 4), st.booleans())
def test_the_most_likely_token_is_the_one_that_argmax_has(
    data: st.DataObject, dtype: torch.dtype, rows: int, all_below_zero: bool
) -> None:
    # Few values, so that the highest often stands twice; 0 and -0 are equals, too; the last two columns are padding.
    values = [-torch.inf, -3.0, -1.0] if all_below_zero else [-torch.inf, -3.0, -0.0, 0.0, 1.0, 1.5, 40.0]
    entries = st.lists(st.sampled_from(values), min_size=5, max_size=5).map(lambda row: [*row, -2.0, 99.0, 99.0])
    logits = torch.tensor(data.draw(st.lists(entries, min_size=rows, max_size=4)), dtype=dtype)
    expected = [standardise(row, Sampling(), 6).argmax().item() for row in logits]
    assert most_likely(logits, 6, rows) == expected[-rows:]
    assert most_likely(logits, 6) == expected[-1:]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_row_without_a_finite_maximum_has_no_most_likely_token(dtype: torch.dtype, wrong: float) -> None:
    logits = torch.tensor([[1.0, wrong, 3.0], [1.0, 0.0, 3.0], [-torch.inf] * 3]).to(dtype)
    assert most_likely(logits[:2], 3) == [2]
    for bad in (logits[:1], logits[2:]):
        with pytest.raises(FloatingPointError, match="not finite"):
            most_likely(bad, 3)


def test_a_nan_with_a_minus_is_seen_in_bf16() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    logits.view(torch.int16)[0, 1] = -64  # what x86 makes of inf - inf: as a whole number below every logit above 0
    assert logits[0, 1].isnan()
    with pytest.raises(FloatingPointError, match="not finite"):
        most_likely(logits, 3)


def test_draws_follow_the_distribution_and_never_take_a_zero() -> None:
    row = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0])
    generator = torch.Generator().manual_seed(0)
    drawn = [draw(row, generator) for _ in range(4000)]
    assert set(drawn) == {1, 3}
    assert drawn.count(1) / 4000 == pytest.approx(0.25, abs=0.028)  # 4 standard deviations
