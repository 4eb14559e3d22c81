"""Algorithm 1's rule and its residual, one pass at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.algorithm.acceptance.base import Verdict, residual
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.sampling import Sampling, draw, standardise


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_equal_distributions_accept_all_and_add_a_token() -> None:
    p = rows([0.5, 0.5], [0.5, 0.5], [0.0, 1.0])
    assert accept_exact(p, p[:2], [0, 1], generator()) == Verdict.chain(2, 1)


def test_a_token_of_target_probability_zero_is_never_accepted() -> None:
    p, q = rows([0.0, 1.0], [1.0, 0.0]), rows([1.0, 0.0])
    assert all(accept_exact(p, q, [0], generator(seed)) == Verdict.chain(0, 1) for seed in range(200))


def test_greedy_rows_accept_while_the_argmaxes_agree() -> None:
    logits = torch.eye(4)[[1, 2, 3, 0]]
    p = standardise(logits, Sampling(0.0), 4)
    q = standardise(torch.eye(4)[[1, 2, 0]], Sampling(0.0), 4)
    assert accept_exact(p, q, [1, 2, 0], generator()) == Verdict.chain(2, 3)


def test_nothing_drafted_is_a_plain_draw_from_p() -> None:
    assert accept_exact(rows([0.0, 1.0]), torch.empty(0), [], generator()) == Verdict.chain(0, 1)


def test_acceptance_probability_is_the_ratio() -> None:
    p, q = rows([0.3, 0.7], [0.5, 0.5]), rows([0.6, 0.4])
    shared_generator = generator()
    accepted = sum(accept_exact(p, q, [0], shared_generator).accepted for _ in range(4000))
    assert accepted / 4000 == pytest.approx(0.5, abs=0.03)  # 3.8 standard deviations


def test_residual_is_the_normed_excess_and_p_where_nothing_is_left() -> None:
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.4, 0.4])
    assert torch.allclose(residual(p, q), torch.tensor([1.0, 0.0, 0.0]))
    assert torch.equal(residual(p, p), p)
    assert torch.equal(residual(p, p + 1e-12), p)


def test_distributions_that_are_not_finite_are_refused() -> None:
    bad = torch.full((1, 4), torch.nan)
    for temperature in (0.0, 1.0):
        row = standardise(bad, Sampling(temperature), 4)
        with pytest.raises(FloatingPointError, match="not finite"):
            draw(row[0], generator())
        with pytest.raises(FloatingPointError, match="not finite"):
            accept_exact(torch.cat([row, row]), row, [0], generator())


weights = st.lists(st.floats(0, 1), min_size=5, max_size=5).filter(lambda values: sum(values) > 0.01)


@settings(max_examples=200, deadline=None)
@given(weights, weights)
def test_accepted_and_residual_mass_add_up_to_p(p_weights: list[float], q_weights: list[float]) -> None:
    """min(p, q) + (1 - beta) residual = p: the identity after Theorem 3.5 and Appendix A.1."""
    p = torch.tensor(p_weights, dtype=torch.float64)
    q = torch.tensor(q_weights, dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    overlap = p.minimum(q)
    assert torch.allclose(overlap + (1 - overlap.sum()) * residual(p, q), p, atol=1e-8)
