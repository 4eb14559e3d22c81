"""Algorithm 1's rule: completions have the target's distribution.

Shapes: G drafted tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import (
    ChainRule,
    Verification,
    draw_next,
    leading,
    residual,
    target_itself,
)
from specbench.config.rule import RuleConfig
from specbench.kernels.rows import ALGORITHM_1, RuleInC
from specbench.kernels.structures import Kind
from specbench.sampling import trials

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.algorithm.acceptance.base import Chance, DraftedTree, NodeRows, Numbers, Proposal, Verdict
    from specbench.sampling import Sampling


@dataclass
class ExactConfig(RuleConfig):
    """Algorithm 1."""

    name: ClassVar[str] = "exact"
    about: ClassVar[str] = "Algorithm 1: lossless."
    on_trees: ClassVar[bool] = True

    @property
    def is_exact(self) -> bool:
        return True

    def verification(self, sampling: Sampling) -> Verification:
        return Verification(accept_exact, sampling)


class AcceptExact(ChainRule):
    """Algorithm 1: accept a drafted x while r q(x) < p(x), with r uniform in [0, 1).

    At the first rejection draw from the residual; after the last token, if all are accepted, from p. The test is a
    product, not a quotient: q(x) may be tiny, and p(x) = 0 must always reject (also at r = 0). On trees it is
    multi-round speculative sampling.
    """

    by_argmax: ClassVar[bool] = True
    numbers_beforehand: ClassVar[bool] = True

    def decide(
        self, p_GV: Tensor, q_GV: Tensor, drafted_G: Tensor, count: Tensor | int, generator: Numbers
    ) -> tuple[Tensor, Tensor]:
        index_G1 = drafted_G.unsqueeze(-1)
        p_of_drafted_G = p_GV[: len(drafted_G)].gather(-1, index_G1).squeeze(-1)
        q_of_drafted_G = q_GV.gather(-1, index_G1).squeeze(-1)
        uniform_G = trials(len(drafted_G), generator, p_GV.device)
        accepted_1 = leading(uniform_G * q_of_drafted_G < p_of_drafted_G, count)
        return accepted_1, draw_next(accepted_1, count, p_GV, q_GV, residual, target_itself, generator)

    @property
    def in_c(self) -> RuleInC:
        return ALGORITHM_1

    def on_tree(self, p_NV: NodeRows, proposal: Proposal, tree: DraftedTree, chance: Chance) -> Verdict:
        from specbench.algorithm.acceptance.tree_rules import ROUNDS, walk

        # Without q nothing was drawn, and no rule asks for q.
        q_NV = [p_NV[0]] * len(tree.tokens) if proposal.q_NV is None else proposal.q_NV
        return walk(p_NV, q_NV, tree, chance, ROUNDS[proposal.children])


accept_exact = AcceptExact()


@dataclass(frozen=True)
class AcceptByChance(ChainRule):
    """Simulated acceptance, to time passes at a given alpha: with probability `alpha`, whatever p and q are.

    Otherwise as Algorithm 1. The completions are not the target's.
    """

    numbers_beforehand: ClassVar[bool] = True
    alpha: float

    @property
    def in_c(self) -> RuleInC:
        return RuleInC(Kind.BY_CHANCE, alpha=self.alpha)

    def decide(
        self, p_GV: Tensor, q_GV: Tensor, drafted_G: Tensor, count: Tensor | int, generator: Numbers
    ) -> tuple[Tensor, Tensor]:
        uniform_G = trials(len(drafted_G), generator, p_GV.device)
        accepted_1 = leading(uniform_G < self.alpha, count)
        return accepted_1, draw_next(accepted_1, count, p_GV, q_GV, residual, target_itself, generator)
