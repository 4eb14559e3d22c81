"""Typical acceptance on trees (Cai et al. 2024, "Medusa", section 2.3.1): lossy.

Shapes: N nodes, V tokens of the vocabulary.
"""

from specbench.algorithm.acceptance.base import TokenRule, Verdict
from specbench.algorithm.acceptance.tree.base import Chance, DraftedTree, NodeRows
from specbench.theory.trees import ROOT


def accept_plausible(rule: TokenRule, p_NV: NodeRows, q_NV: NodeRows, tree: DraftedTree, chance: Chance) -> Verdict:
    """The longest path on which `rule` accepts each token; of equal paths the likeliest under p, then the first.

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
