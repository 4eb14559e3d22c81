"""Typical acceptance (Cai et al. 2024, "Medusa", section 2.3.1): accept tokens that are plausible under the target.

Shapes: K tokens picked from the vocabulary, L positions, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import TokenRule, Verdict, Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.config.keys import key, require
from specbench.config.rule import RuleConfig
from specbench.kernels.rows import RuleInC
from specbench.kernels.structures import Kind
from specbench.theory.trees import ROOT

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.algorithm.acceptance.base import Chance, DraftedTree, NodeRows, Proposal
    from specbench.config.draft import DraftConfig
    from specbench.config.tree import TreeConfig
    from specbench.sampling import Sampling


@dataclass
class TypicalConfig(RuleConfig):
    """Typical acceptance."""

    name: ClassVar[str] = "typical"
    about: ClassVar[str] = (
        "Typical acceptance (Medusa), lossy at T > 0: a token is accepted where p is above min(epsilon, "
        "delta exp(-entropy))."
    )
    lossy: ClassVar[bool] = True
    on_trees: ClassVar[bool] = True
    epsilon: float = key(0.09, "the upper bound of the threshold that p must exceed")
    delta: float = key(0.3, "below that bound the threshold is delta exp(-entropy)")

    def check(self, temperature: float, tree: TreeConfig, draft: DraftConfig) -> None:
        require(0 < self.epsilon < 1, "accept.epsilon", self.epsilon, "between 0 and 1")
        require(0 < self.delta < 1, "accept.delta", self.delta, "between 0 and 1")

    def label(self) -> str:
        return f"typical ε={self.epsilon:g} δ={self.delta:g}"

    def verification(self, sampling: Sampling) -> Verification:
        """At T = 0 it accepts only the argmax, as Algorithm 1 does."""
        greedy = sampling.temperature == 0
        return Verification(accept_exact if greedy else Typical(self.epsilon, self.delta), sampling)


@dataclass(frozen=True)
class Typical(TokenRule):
    """Accept a drafted x while p(x) > min(epsilon, delta exp(-H(p))), H the entropy of p in nats; then draw from p.

    The more certain the target, the higher the threshold, up to epsilon. The test uses neither q nor a random number,
    so accepted tokens have the draft's distribution among plausible tokens: lossy. Medusa always takes its first token
    from the target; here the token after the accepted tokens plays that role, so if every drafted token is rejected,
    the completion is the target's own. p is the standardised p: at T = 0 it is one-hot, its entropy is 0, only the
    argmax passes, and the rule is lossless.
    """

    epsilon: float
    delta: float

    @property
    def in_c(self) -> RuleInC:
        return RuleInC(Kind.TYPICAL, epsilon=self.epsilon, delta=self.delta)

    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        entropy_L1 = -p_LV.xlogy(p_LV).sum(-1, keepdim=True)
        bar_L1 = (self.delta * (-entropy_L1).exp()).clamp(max=self.epsilon)
        return (p_LK > bar_L1).to(p_LK.dtype)

    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        return p_LV

    def on_tree(self, p_NV: NodeRows, proposal: Proposal, tree: DraftedTree, chance: Chance) -> Verdict:
        return accept_plausible(self, p_NV, proposal.each_NV(p_NV[0]), tree, chance)


def accept_plausible(rule: TokenRule, p_NV: NodeRows, q_NV: NodeRows, tree: DraftedTree, chance: Chance) -> Verdict:
    """The longest path on which `rule` accepts each token; among equal paths the likeliest under p, then the first.

    That is how Cai et al. 2024 decide on trees (section 2.3.1).

    The next token is drawn from the distribution that the rule emits after the path.
    """
    products: dict[int, float] = {ROOT: 1.0}
    depths, best = {ROOT: 0}, (0, 1.0, ROOT)
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent not in products:
            continue
        p_1V, q_11 = p_NV[parent + 1].unsqueeze(0), q_NV[node][token].reshape(1, 1)
        p_11 = p_1V[:, token : token + 1]
        if chance.accepts(node, rule.accept_probability(p_11, q_11, p_1V).squeeze(), p_11.new_ones(())):
            products[node], depths[node] = products[parent] * float(p_11), depths[parent] + 1
            if (depths[node], products[node]) > best[:2]:
                best = (depths[node], products[node], node)
    path: list[int] = []
    node = best[2]
    while node != ROOT:
        path.append(node)
        node = tree.parents[node]
    return Verdict(path[::-1], chance.draw(rule.bonus(p_NV[best[2] + 1].unsqueeze(0))[0]))
