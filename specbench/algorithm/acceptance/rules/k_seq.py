"""K-SEQ (Sun et al. 2023, "SpecTr", Algorithm 3): lossless, for trees of independent draws from one q.

Each child of a node is tested on p itself, with q scaled so that the total acceptance of each token is at most p
(`tree_rules.KSequential`). On a chain it is Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.exact import AcceptExact
from specbench.config.rule import RuleConfig
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.algorithm.acceptance.base import Chance, DraftedTree, NodeRows, Proposal, Verdict
    from specbench.config.draft import DraftConfig
    from specbench.config.tree import TreeConfig
    from specbench.sampling import Sampling


@dataclass
class KSeqConfig(RuleConfig):
    """K-SEQ."""

    name: ClassVar[str] = "k-seq"
    about: ClassVar[str] = (
        "K-SEQ (Sun et al. 2023, SpecTr), for trees of independent draws: lossless; with tree=widths "
        "tree.children=replaced."
    )
    on_trees: ClassVar[bool] = True
    on_chain: ClassVar[str | None] = "exact"

    def check(self, temperature: float, tree: TreeConfig, draft: DraftConfig) -> None:
        """Raise UserError unless a tree's children are independent draws from one q: the scale depends on how many."""
        if tree.shape == "none":  # what it is on a chain says `on_chain`
            return
        if tree.shape != "widths" or tree.children != "replaced":
            raise UserError(
                f"accept=k-seq: not together with tree={tree.shape}, tree.children={tree.children}: its children are "
                "independent draws, as many as a shape says; use tree=widths tree.children=replaced"
            )
        if not draft.scores_children:
            raise UserError(
                f"accept=k-seq: not together with draft={draft.label()}: its children are draws from one q; use "
                "accept=exact"
            )

    def verification(self, sampling: Sampling) -> Verification:
        return Verification(accept_k_seq, sampling)


class AcceptKSeq(AcceptExact):
    """K-SEQ on trees of independent draws."""

    k_sequential: ClassVar[bool] = True

    def on_tree(self, p_NV: NodeRows, proposal: Proposal, tree: DraftedTree, chance: Chance) -> Verdict:
        from specbench.algorithm.acceptance.tree_rules import KSequential, walk

        assert proposal.q_NV is not None and proposal.children == "replaced", (
            "K-SEQ is for independent draws from one q"
        )
        return walk(p_NV, proposal.q_NV, tree, chance, KSequential)


accept_k_seq = AcceptKSeq()
