"""The bound on rules for gamma and on routers: the least cost over every choice, and with one choice the walk's own."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from specbench.analysis.acceptance.agreement import Agreement
from specbench.analysis.forecast import walk
from specbench.analysis.forecast.hindsight import Option, least_cost
from specbench.analysis.forecast.predict import ratios_ahead


def text_of(seed: int, length: int = 9, greedy: bool = False, ahead: int = 0) -> Agreement:
    random = np.random.default_rng(seed)
    ratio = random.integers(0, 2, length).astype(float) if greedy else random.uniform(0, 1.5, length)
    silent = [bool(one) for one in random.random(length) < 0.2]
    further = [text_of(seed + 100 + level, length, greedy) for level in range(ahead)]
    return Agreement(beta=[0.5] * length, ratio=ratio.tolist(), silent=silent, ahead=further)


def prices(seed: int, gamma: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1, 2, (2, gamma + 1))


def test_a_text_without_silent_places_needs_no_list_of_them() -> None:
    text, costs = replace(text_of(1), silent=[False] * 9), prices(1, 3)
    assert least_cost([Option(replace(text, silent=[]), 3, costs)], 9) == least_cost([Option(text, 3, costs)], 9)


@pytest.mark.parametrize("ahead", [0, 3])
def test_with_one_option_it_is_the_cost_of_the_walk(ahead: int) -> None:
    for seed, gamma, most in product(range(5), (1, 3), (9, 12)):
        text, costs = text_of(seed, ahead=ahead), prices(seed, gamma)
        walked = walk(text.ratio, gamma, most, text.silent, None, ahead=ratios_ahead(text))
        assert least_cost([Option(text, gamma, costs)], most) == pytest.approx((walked.passes * costs).sum())


def test_of_certain_acceptance_it_is_the_best_of_all_sequences_of_choices() -> None:
    gammas, length = (0, 1, 3), 4
    for seed in range(4):
        texts = [text_of(seed, length, greedy=True), text_of(seed + 50, length, greedy=True)]
        options = [Option(text, gamma, prices(gamma, gamma)) for text in texts for gamma in gammas]

        def cost(start: int, choices: tuple[int, ...], options: list[Option] = options) -> float:
            spent = 0.0
            for choice in choices:
                if start >= length:
                    break
                one = options[choice]
                drafted = 0 if one.text.silent[start] else one.gamma
                spent += one.costs[min(start, 1), drafted]
                accepted = 0
                while accepted < drafted and start + accepted < length and one.text.ratio[start + accepted]:
                    accepted += 1
                start += accepted + 1
            return spent

        best = min(cost(0, plan) for plan in product(range(len(options)), repeat=length))
        assert least_cost(options, 100) == pytest.approx(best)


def test_a_choice_never_costs_more_than_the_best_constant_one() -> None:
    for seed in range(10):
        texts = [text_of(seed), text_of(seed + 50, ahead=2)]
        options = [Option(text, gamma, prices(gamma, gamma)) for text in texts for gamma in (1, 4)]
        alone = [least_cost([one], 12) for one in options]
        assert least_cost(options, 12) <= min(alone) + 1e-12
        assert least_cost(options[:1] * 2, 12) == pytest.approx(alone[0])
