"""Policies of gamma: what they pick, and what they learn from."""

import pytest

from specbench import theory
from specbench.algorithm.gamma import Adaptive, Constant, Heuristic


def test_a_constant_never_changes() -> None:
    state = Constant(5).start()
    for accepted in (0, 5, 2):
        assert state.next() == 5
        state.learn(5, accepted)


def prices(c: float, limit: int = 30) -> dict[int, float]:
    return {gamma: gamma * c + 1 for gamma in range(1, limit + 1)}


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("c", [0.02, 0.1])
def test_before_anything_is_seen_it_is_the_papers_best_gamma(alpha: float, c: float) -> None:
    assert Adaptive(alpha, prices(c)).start().next() == theory.optimal_gamma(alpha, c, limit=30)


def test_it_moves_with_what_is_accepted_and_texts_start_afresh() -> None:
    policy = Adaptive(0.6, prices(0.05))
    easy, hard = policy.start(), policy.start()
    first = easy.next()
    for _ in range(20):
        easy.learn(4, 4)
        hard.learn(4, 0)
    assert hard.next() < first < easy.next()
    assert policy.start().next() == first


def test_a_token_after_a_rejection_is_not_tested() -> None:
    """The estimate is accepted over tested tokens, which is alpha; accepted over drafted is not."""
    state = Adaptive(0.5, {1: 1.0}, weight=1e-9).start()
    for accepted in (3, 0, 1, 4):
        state.learn(4, accepted)
    assert state.accepted / state.tested == pytest.approx(8 / 11)


def test_a_draft_that_proposed_nothing_teaches_nothing() -> None:
    state = Adaptive(0.5, {1: 1.0}).start()
    state.learn(0, 0)
    assert state.accepted / state.tested == 0.5


def test_the_heuristic_is_transformers_own() -> None:
    """gamma + 2 if all were accepted, otherwise gamma - 1, from 1 to the most; an empty proposal changes nothing."""
    policy = Heuristic(most=8, first=5)
    state = policy.start()
    seen = [state.next()]
    for drafted, accepted in ((5, 5), (7, 7), (8, 3), (7, 0), (0, 0), (6, 6)):
        state.learn(drafted, accepted)
        seen.append(state.next())
    assert seen == [5, 7, 8, 7, 6, 6, 8]
    for _ in range(20):
        state.learn(3, 0)
    assert state.next() == 1
    assert policy.start().next() == 5
