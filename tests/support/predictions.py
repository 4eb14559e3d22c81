"""Predictions from made agreements and made rounds of known costs."""

from collections.abc import Sequence

import numpy as np

from specbench.analysis.acceptance.agreement import Agreement
from specbench.analysis.forecast.predict import Predictions
from specbench.records.timed_rounds import Round, Timed

STEP = 0.01


def fake_round(
    costs: dict[str, float], gammas: Sequence[int], noise: float = 0.0, seed: int = 0, slow: float = 1.0
) -> Round:
    """Passes with the given c of each draft, v = 1 + 0.05 gamma and an overhead of 0.02, all `slow` times slower."""
    generator = np.random.default_rng(seed)

    def time(steps: float) -> float:
        return float(STEP * steps * slow * (1 + noise * generator.standard_normal()))

    passes = {
        (draft, gamma): [
            Timed(gamma, gamma, 0, False, time(gamma * c), time(1 + 0.05 * gamma), time(0.02)) for _ in range(4)
        ]
        for draft, c in costs.items()
        for gamma in gammas
    }  # fmt: skip
    return Round.of(passes, [time(1.0) for _ in range(12)])


def texts(alpha: float, prompts: int, seed: int, length: int = 30) -> list[Agreement]:
    kept = np.random.default_rng(seed).random((prompts, length)) < alpha
    return [Agreement([float(one) for one in row], [float(one) for one in row]) for row in kept]


def predictions(
    alphas: dict[str, float], costs: dict[str, float], prompts: int = 40, noise: float = 0.0
) -> Predictions:
    gammas = [1, 2, 3, 5]
    found = {draft: texts(alpha, prompts, seed) for seed, (draft, alpha) in enumerate(alphas.items())}
    return Predictions(found, [fake_round(costs, gammas, noise, seed) for seed in range(4)], 128, 200, seed=0)
