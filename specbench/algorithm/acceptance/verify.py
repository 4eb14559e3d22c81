"""From the target's logits to a verdict; the only place with a shortcut for T = 0.

At T = 0 a lossless rule compares one-hot rows, so its verdict only depends on whether a draft token is the argmax.
`target_rows` then computes argmax tokens instead of rows, which on a CPU would cost as much as the rest of the
verification, and `verify` computes the verdict from these tokens. A test compares both with the rule on the rows.

A proposal that is still on the device is verified there (`verdict_on_host`): the drafted tokens and the verdict come to
the host in one copy.

Shapes: G drafted tokens, L positions, V logits of the head or tokens of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import (
    ChainRule,
    PendingProposal,
    Proposal,
    Verdict,
    Verification,
    leading,
)
from specbench.algorithm.acceptance.tree_rules import DraftedTree, Uniforms
from specbench.sampling import Sampling, argmax, checked, most_likely, standardise
from specbench.theory.trees import ROOT


class RowsOfTree:
    """p after each node [V], standardised when a rule first reads it, since a walk from the root visits few nodes."""

    def __init__(self, logits_NV: Tensor, sampling: Sampling, vocabulary_size: int) -> None:
        self.logits_NV, self.sampling, self.size = logits_NV, sampling, vocabulary_size
        self._rows: dict[int, Tensor] = {}

    def __getitem__(self, node: int) -> Tensor:
        if node not in self._rows:
            self._rows[node] = standardise(self.logits_NV[node : node + 1], self.sampling, self.size)[0]
        return self._rows[node]


# p [G + 1, V], of a tree row by row; or the tokens [G + 1] that have all of it, on the device as a tensor.
TargetRows = Tensor | RowsOfTree | list[int]


def target_rows(
    logits_LV: Tensor, proposal: Proposal | PendingProposal, verification: Verification, vocabulary_size: int
) -> TargetRows:
    """p at the positions of the target's run that decide on `proposal`: the last, and one for each of its tokens.

    Raises FloatingPointError where the argmax is not finite; of rows, drawing from them does.
    """
    rows = proposal.size + 1
    if verification.argmax_only:
        if isinstance(proposal, PendingProposal):
            return argmax(logits_LV[-rows:], vocabulary_size)
        return most_likely(logits_LV, vocabulary_size, rows)
    if proposal.parents is not None:
        return RowsOfTree(logits_LV[-rows:], verification.sampling, vocabulary_size)
    return standardise(logits_LV[-rows:], verification.sampling, vocabulary_size)


def verdict_on_host(
    rows: TargetRows, proposal: Proposal | PendingProposal, verification: Verification, generator: torch.Generator
) -> tuple[Proposal, Verdict]:
    """Verify `proposal`, on the device if it is still there, and return it and the verdict on the host.

    `rows` are from `target_rows`. Raises FloatingPointError where p or q is not finite.
    """
    if isinstance(proposal, Proposal):
        return proposal, verify(rows, proposal, verification, generator)
    assert isinstance(rows, Tensor)
    count_1, rule = proposal.proposed(), verification.rule
    if verification.argmax_only:
        accepted_1 = leading(rows[:-1] == proposal.tokens_G, count_1)
        token_1 = rows.index_select(0, accepted_1)
    elif isinstance(rule, ChainRule):
        accepted_1, token_1 = rule.decide(rows, proposal.q(rows), proposal.read_G, count_1, generator)
    else:  # a rule that reads values on the host
        known = proposal.brought()
        return known, verify(rows[: known.size + 1], known, verification, generator)
    *tokens, count, accepted, token = torch.cat([proposal.tokens_G, count_1, accepted_1, token_1]).tolist()
    checked([token])
    return proposal.known(tokens, count), Verdict.chain(accepted, token)


def verify(rows: TargetRows, proposal: Proposal, verification: Verification, generator: torch.Generator) -> Verdict:
    """Which tokens of `proposal` are accepted, and which token follows; `rows` are from `target_rows`."""
    if proposal.parents is not None:
        return _verify_tree(rows, proposal, proposal.parents, verification, generator)
    if isinstance(rows, Tensor):
        if isinstance(verification.rule, ChainRule):
            return verification.rule.on_chain(rows, proposal, generator)
        return verification.rule(rows, proposal.q(rows), proposal.tokens, generator)
    assert isinstance(rows, list), "a chain has its rows at once"
    return _by_argmax(rows, proposal.tokens)


def _verify_tree(
    rows: TargetRows, proposal: Proposal, parents: Sequence[int], verification: Verification, generator: torch.Generator
) -> Verdict:
    """The verdict on a tree; a tree that is a chain gets the chain's verdict, on the same random numbers."""
    tree = DraftedTree(proposal.tokens, parents)
    if isinstance(rows, list):
        return _tree_by_argmax(rows, tree)
    chance = Uniforms(len(tree.tokens), generator, rows[0].device)
    if not isinstance(verification.rule, ChainRule):
        raise ValueError("no rule for trees")
    return verification.rule.on_tree(rows, proposal, tree, chance)


def _tree_by_argmax(best_N: Sequence[int], tree: DraftedTree) -> Verdict:
    """As `_by_argmax`, for a tree: descend from the root as long as a child is the argmax."""
    path: list[int] = []
    node = ROOT
    for child, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent == node and token == best_N[node + 1]:
            path.append(child)
            node = child
    return Verdict(path, best_N[node + 1])


def _by_argmax(best_G: Sequence[int], drafted_G: Sequence[int]) -> Verdict:
    """The verdict of every lossless rule at T = 0; `best_G` has one token more than `drafted_G`.

    p(x) is 1 or 0, so r q(x) < p(x) tests whether x is the argmax, and the residual of a row that rejects x is its
    argmax.
    """
    accepted = 0
    for best, drafted in zip(best_G, drafted_G, strict=False):
        if best != drafted:
            break
        accepted += 1
    return Verdict.chain(accepted, best_G[accepted])
