"""The paper's equations."""

import doctest

import pytest

from specbench import theory


def test_equation_one_and_its_closed_form() -> None:
    for alpha in (0.0, 0.3, 0.9):
        for gamma in (1, 4, 10):
            closed = (1 - alpha ** (gamma + 1)) / (1 - alpha)
            assert theory.expected_tokens(alpha, gamma) == pytest.approx(closed)
    assert theory.expected_tokens(1.0, 7) == 8


def test_theorem_3_8_and_its_calibrated_form() -> None:
    assert theory.walltime_improvement(0.75, 7, 0.02) == pytest.approx(3.157, abs=5e-4)
    assert theory.walltime_improvement(0.75, 7, 0.02, verify_cost=1.0) == theory.walltime_improvement(0.75, 7, 0.02)
    assert theory.walltime_improvement(0.75, 7, 0.02, verify_cost=1.2) < theory.walltime_improvement(0.75, 7, 0.02)


def test_theorem_3_8_of_a_chain_as_a_tree() -> None:
    tokens = theory.expected_tokens(0.75, 7)
    assert theory.tree_improvement(tokens, 7, 0.02) == pytest.approx(theory.walltime_improvement(0.75, 7, 0.02))
    assert theory.tree_improvement(4.0, 3, 0.1, verify_cost=1.7) == pytest.approx(2.0)


def test_a_run_is_bound_by_reading_or_by_multiplying() -> None:
    least = theory.Roofline(reading=3.0, multiplying=0.5)
    assert least.turning == 6 and [least.of_run(n) for n in (1, 6, 10)] == [3.0, 3.0, 5.0]


def test_theorem_3_11() -> None:
    assert theory.operations_increase(0.8, 5, 0.0) == pytest.approx(1.63, abs=5e-3)


def test_corollary_3_9_is_gamma_one() -> None:
    assert theory.guaranteed_improvement(0.5, 0.1) == pytest.approx(theory.walltime_improvement(0.5, 1, 0.1))


def test_optimal_gamma_of_figure_3() -> None:
    assert [theory.optimal_gamma(0.9, c) for c in (0.01, 0.02, 0.05, 0.1)] == [24, 19, 13, 10]


def test_accepted_per_drafted_is_not_alpha() -> None:
    assert theory.accepted_per_drafted(0.75, 7) == pytest.approx(0.371, abs=5e-4)


def test_the_docstring_examples_hold() -> None:
    assert doctest.testmod(theory).failed == 0
