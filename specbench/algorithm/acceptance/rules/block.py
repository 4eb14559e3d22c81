"""Block verification (Sun et al., ICLR 2025, "Block Verification Accelerates Speculative Decoding", Algorithm 2).

It is lossless, and no lossless rule has more expected tokens per pass: a token that Algorithm 1 would reject may be
accepted if the proposal as a whole is no less likely under p than under q.

Shapes: G drafted tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import (
    ChainRule,
    Verification,
    draw_next,
    last_passed,
    residual,
    target_itself,
)
from specbench.config.rule import RuleConfig
from specbench.deferred import torch
from specbench.kernels.rows import RuleInC
from specbench.kernels.structures import Kind
from specbench.sampling import trials

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.algorithm.acceptance.base import Chance, DraftedTree, NodeRows, Numbers, Proposal, Verdict
    from specbench.sampling import Sampling


@dataclass
class BlockConfig(RuleConfig):
    """Block verification."""

    name: ClassVar[str] = "block"
    about: ClassVar[str] = (
        "Block verification (Sun et al., ICLR 2025): lossless, never fewer expected tokens per pass than exact."
    )

    def verification(self, sampling: Sampling) -> Verification:
        return Verification(accept_block, sampling)


class AcceptBlock(ChainRule):
    """Block verification: accept the longest prefix of the proposal that passes its own test.

    A prefix can pass where a shorter one failed: x_1 ... x_i passes with probability h_i (`chances`). Then draw from
    norm(max(0, w_i p - q)), or from p if all tokens were accepted.

    A draft may end its proposal depending on a token that it drew. Such an end is a row of q without mass, which gives
    the test of the last token and the draw from p. On trees it is traversal verification (`rules.traversal`).
    """

    by_argmax: ClassVar[bool] = True
    as_a_whole: ClassVar[bool] = True
    numbers_beforehand: ClassVar[bool] = True

    @property
    def in_c(self) -> RuleInC:
        return RuleInC(Kind.BY_BLOCK)

    def decide(
        self, p_GV: Tensor, q_GV: Tensor, drafted_G: Tensor, count: Tensor | int, generator: Numbers
    ) -> tuple[Tensor, Tensor]:
        uniform_G = trials(len(drafted_G), generator, p_GV.device)
        h_G, w_G = chances(p_GV, q_GV, drafted_G, count)
        accepted_1 = last_passed(uniform_G < h_G, count) if len(drafted_G) else drafted_G.new_zeros(1)
        weight_1 = torch.cat([w_G.new_ones(1), w_G]).index_select(0, accepted_1)

        def recovered(p_1V: Tensor, q_1V: Tensor) -> Tensor:
            return residual(weight_1 * p_1V, q_1V)

        return accepted_1, draw_next(accepted_1, count, p_GV, q_GV, recovered, target_itself, generator)

    def on_tree(self, p_NV: NodeRows, proposal: Proposal, tree: DraftedTree, chance: Chance) -> Verdict:
        from specbench.algorithm.acceptance.tree_rules import accept_traversal

        return accept_traversal(p_NV, proposal.each_NV(p_NV[0]), tree, chance, proposal.children != "distinct")


accept_block = AcceptBlock()


def chances(p_GV: Tensor, q_GV: Tensor, drafted_G: Tensor, count: Tensor | int) -> tuple[Tensor, Tensor]:
    """h_i [G], the chance that x_1 ... x_i passes its test, and w_i [G], i = 1 ... G; the proposal ends with x_count.

    w_i = min(1, w_{i-1} p(x_i) / q(x_i)), w_0 = 1: how likely the beginning is under p against q, never above 1.
    h_i = S_i / (S_i + 1 - w_i) with S_i = sum_x max(0, w_i p(x) - q(x)) at the next place, and h_count = w_count.
    """
    length = len(drafted_G)
    if length == 0:
        return p_GV.new_empty(0), p_GV.new_empty(0)
    index_G1 = drafted_G.unsqueeze(-1)
    ratio_G1 = p_GV[:length].gather(-1, index_G1) / q_GV.gather(-1, index_G1)  # a drawn token has q > 0
    weights = [ratio_G1[0].clamp(max=1.0)]
    for ratio_1 in ratio_G1[1:]:
        weights.append((weights[-1] * ratio_1).clamp(max=1.0))
    w_G = torch.cat(weights)
    before_G = w_G[:-1]
    rest_G = (before_G.unsqueeze(-1) * p_GV[1:length] - q_GV[1:]).clamp(min=0).sum(-1)
    # If w_i is 1, the test is passed for sure, also if p and q agree and nothing is left.
    h_G = torch.cat([torch.where(before_G < 1, rest_G / (rest_G + 1 - before_G), 1.0), w_G[-1:]])
    return torch.where(torch.arange(1, length + 1, device=h_G.device) == count, w_G, h_G), w_G
