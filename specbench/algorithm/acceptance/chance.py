"""Simulated acceptance: accept at random, to time passes at a given alpha.

Shapes: G drafted tokens, V tokens of the vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import ChainRule, draw_next, leading, residual, target_itself


@dataclass(frozen=True)
class AcceptByChance(ChainRule):
    """Accept each draft token with probability `alpha`, whatever p and q are; otherwise as Algorithm 1.

    The completions are not the target's.
    """

    alpha: float

    def decide(
        self, p_GV: Tensor, q_GV: Tensor, drafted_G: Tensor, count: Tensor | int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        uniform_G = torch.rand(len(drafted_G), generator=generator, device=p_GV.device)
        accepted_1 = leading(uniform_G < self.alpha, count)
        return accepted_1, draw_next(accepted_1, count, p_GV, q_GV, residual, target_itself, generator)
