"""The verdict from the target's logits; the only place with a shortcut for T = 0.

At T = 0 a lossless rule compares one-hot rows, so its verdict only depends on whether a draft token is the argmax.
`target_rows` then computes argmax tokens instead of rows, which on a CPU would cost as much as the rest of the
verification, and `verify` computes the verdict from these tokens. A test compares both with the rule on the rows.

On another device than a CPU a chain is verified there (`verdict_on_host`), whether the host knows its tokens or not.
From the logits of the target's run to the verdict all is one function of tensors (`VerdictOfLogits`), which an engine
may capture: dozens of small operations become one launch (`Model.repeat`), and a few numbers come to the host in one
copy.

Shapes: G drafted tokens, L positions, V logits of the head or tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import (
    ChainRule,
    DraftedTree,
    PendingProposal,
    Proposal,
    Verdict,
    Verification,
    leading,
)
from specbench.algorithm.acceptance.tree_rules import Uniforms
from specbench.engine.session import Repeat, as_it_is
from specbench.sampling import DrawnNumbers, Sampling, TokenChoice, argmax, checked, draw_next, most_likely, standardise
from specbench.theory.trees import ROOT


class NodeDistributions(dict[int, Tensor]):
    """p after each node [V], standardised when a rule first reads it: a walk from the root visits few nodes."""

    def __init__(self, logits_NV: Tensor, sampling: Sampling, vocabulary_size: int) -> None:
        self.logits_NV, self.sampling, self.size = logits_NV, sampling, vocabulary_size

    def __missing__(self, node: int) -> Tensor:
        self[node] = row_V = standardise(self.logits_NV[node : node + 1], self.sampling, self.size)[0]
        return row_V


@dataclass(frozen=True)
class UnreadRows:
    """Logits [G + 1, V] on a device, of which the verdict makes p, or the argmax tokens, itself."""

    logits_LV: Tensor
    vocabulary_size: int


# p [G + 1, V], for a tree row by row; or the tokens [G + 1] that have all of it; or the logits that give either.
TargetRows = Tensor | NodeDistributions | list[int] | UnreadRows


def target_rows(
    logits_LV: Tensor,
    proposal: Proposal | PendingProposal,
    verification: Verification,
    vocabulary_size: int,
    repeat: Repeat = as_it_is,
) -> TargetRows:
    """p at the positions of the target's run that decide on `proposal`: the last, and one for each of its tokens.

    `logits_LV` are the run's; the last rows belong to tokens that were read beside the proposal. `repeat` runs
    functions of tensors. Raises FloatingPointError if the argmax is not finite. Rows are checked when a token is drawn
    from them.
    """
    rows = proposal.size + 1
    if proposal.unverified is not None:
        logits_LV = logits_LV[: len(logits_LV) - len(proposal.unverified.tokens)]
    if _on_device(logits_LV, proposal, verification):
        return UnreadRows(logits_LV[-rows:], vocabulary_size)
    if verification.argmax_only:
        if logits_LV.is_cpu:
            return most_likely(logits_LV, vocabulary_size, rows)
        return checked(repeat(ArgmaxTokens(vocabulary_size), logits_LV[-rows:]).tolist())
    if proposal.parents is not None:
        return NodeDistributions(logits_LV[-rows:], verification.sampling, vocabulary_size)
    return standardise(logits_LV[-rows:], verification.sampling, vocabulary_size)


def standardised(rows: TargetRows, verification: Verification) -> Tensor | None:
    """p [L, V] of the `rows` of a chain; None if only argmax tokens decide."""
    if isinstance(rows, UnreadRows) and not verification.argmax_only:
        return standardise(rows.logits_LV, verification.sampling, rows.vocabulary_size)
    return rows if isinstance(rows, Tensor) else None


def _on_device(logits_LV: Tensor, proposal: Proposal | PendingProposal, verification: Verification) -> bool:
    """Whether the verdict on `proposal` is computed on the device of the logits, without rows that the host reads."""
    decides = isinstance(verification.rule, ChainRule) and verification.rule.numbers_beforehand
    if isinstance(proposal, PendingProposal):
        return decides or verification.argmax_only
    is_chain = proposal.parents is None and bool(proposal.tokens)
    return decides and not verification.argmax_only and is_chain and not logits_LV.is_cpu


@dataclass(frozen=True)
class ChosenToken:
    """The token [1] that `choice` takes from a row, and its uniform number if it draws."""

    choice: TokenChoice

    def __call__(self, logits_1V: Tensor, uniform_1: Tensor | None = None) -> Tensor:
        return self.choice.on_device(logits_1V, uniform_1)[0]


def next_token(
    logits_LV: Tensor, sampling: Sampling, vocabulary_size: int, generator: torch.Generator, repeat: Repeat = as_it_is
) -> int:
    """The token that follows the last position in standard decoding; on a device by `repeat`.

    Raises FloatingPointError if the distribution is not finite.
    """
    if logits_LV.is_cpu:
        return draw_next(logits_LV, sampling, vocabulary_size, generator)[0]
    choice = TokenChoice(sampling, vocabulary_size)
    uniform_1 = choice.uniforms(1, generator)
    token_1 = repeat(ChosenToken(choice), logits_LV[-1:], *(() if uniform_1 is None else (uniform_1,)))
    return checked(token_1.tolist())[0]


@dataclass(frozen=True)
class ArgmaxTokens:
    """The target's tokens [L] at T = 0."""

    vocabulary_size: int
    by_row: ClassVar[bool] = True  # as `Model.repeat` reads it

    def __call__(self, logits_LV: Tensor) -> Tensor:
        return argmax(logits_LV, self.vocabulary_size)


@dataclass(frozen=True)
class VerdictOfLogits:
    """Drafted tokens [G], how many of them count, how many are accepted, and the next token, as one tensor [G + 3].

    Logits [G + 1, V] are standardised, tokens tested, and the next token drawn. `numbers` are the tensors of
    `DrawnNumbers`, and q if the draft has any; none if the argmax tokens decide (`rule` is None).
    """

    rule: ChainRule | None
    sampling: Sampling
    vocabulary_size: int

    def __call__(self, logits_LV: Tensor, tokens_G: Tensor, ends_E: Tensor, *numbers: Tensor) -> Tensor:
        proposal = PendingProposal(tokens_G, numbers[2] if len(numbers) > 2 else None, ends_E)
        count_1 = proposal.proposed()
        if self.rule is None:
            best_L = argmax(logits_LV, self.vocabulary_size)
            accepted_1 = leading(best_L[:-1] == tokens_G, count_1)
            token_1 = best_L.index_select(0, accepted_1)
        else:
            p_LV = standardise(logits_LV, self.sampling, self.vocabulary_size)
            given = DrawnNumbers(*numbers[:2])
            accepted_1, token_1 = self.rule.decide(p_LV, proposal.q(p_LV), proposal.read_G, count_1, given)
        return torch.cat([tokens_G, count_1, accepted_1, token_1])


def verdict_on_host(
    rows: TargetRows,
    proposal: Proposal | PendingProposal,
    verification: Verification,
    generator: torch.Generator,
    repeat: Repeat = as_it_is,
) -> tuple[Proposal, Verdict]:
    """Verify `proposal`, on the device if `rows` are still logits, and return it and the verdict on the host.

    `rows` and `repeat` are as of `target_rows`. Raises FloatingPointError if p or q is not finite.
    """
    if isinstance(rows, UnreadRows):
        return _verdict_of_logits(rows, proposal, verification, generator, repeat)
    if isinstance(proposal, PendingProposal):  # and a rule that reads values on the host
        proposal = proposal.brought()
        assert isinstance(rows, Tensor)
        rows = rows[: proposal.size + 1]
    return proposal, verify(rows, proposal, verification, generator)


def _verdict_of_logits(
    rows: UnreadRows,
    proposal: Proposal | PendingProposal,
    verification: Verification,
    generator: torch.Generator,
    repeat: Repeat,
) -> tuple[Proposal, Verdict]:
    """The verdict by one function on the device, whose result is read once."""
    logits_LV, device = rows.logits_LV, rows.logits_LV.device
    asked, pending = proposal.size, proposal
    if isinstance(proposal, Proposal):
        tokens_G = torch.tensor(proposal.tokens, device=device)
        asked, pending = max(asked, proposal.asked), PendingProposal(tokens_G, proposal.q_GV, tokens_G[:0])
    assert isinstance(pending, PendingProposal)
    rule = verification.rule if isinstance(verification.rule, ChainRule) and not verification.argmax_only else None
    numbers: list[Tensor] = []
    if rule is not None:
        # As many as for all tokens that were asked for, so that the generator is where it would be after them.
        drawn = DrawnNumbers.of(asked, generator, device, rule.draws_at_each)
        at_each = drawn.next_1[: pending.size + 1] if rule.draws_at_each else drawn.next_1
        numbers = [drawn.trials_G[: pending.size], at_each, *(() if pending.q_GV is None else (pending.q_GV,))]
    function = VerdictOfLogits(rule, verification.sampling, rows.vocabulary_size)
    *tokens, count, accepted, token = repeat(function, logits_LV, pending.tokens_G, pending.ends_E, *numbers).tolist()
    checked([token])
    known = proposal if isinstance(proposal, Proposal) else pending.known(tokens, count)
    return known, Verdict.chain(accepted, token)


def verify(rows: TargetRows, proposal: Proposal, verification: Verification, generator: torch.Generator) -> Verdict:
    """Decide which tokens of `proposal` are accepted, and which token follows; `rows` are from `target_rows`.

    A tree that is a chain gets the chain's verdict, from the same random numbers. Raises ValueError for a tree if the
    rule reads only chains.
    """
    tokens, parents, rule = proposal.tokens, proposal.parents, verification.rule
    assert not isinstance(rows, UnreadRows)
    if isinstance(rows, list):
        if parents is not None:
            return _by_argmax(rows, tokens, parents)
        path, token = _by_argmax(rows, tokens, range(ROOT, len(tokens) - 1))
        return Verdict.chain(len(path), token)
    if parents is not None:
        if not isinstance(rule, ChainRule):
            raise ValueError("no rule for trees")
        chance = Uniforms(len(tokens), generator, rows[0].device)
        return rule.on_tree(rows, proposal, DraftedTree(tokens, parents), chance)
    assert isinstance(rows, Tensor), "a chain has its rows at once"
    if isinstance(rule, ChainRule):
        return rule.on_chain(rows, proposal, generator)
    return rule(rows, proposal.q(rows), tokens, generator)


def _by_argmax(best_N: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Verdict:
    """The verdict of every lossless rule at T = 0: descend from the root as long as a child is the argmax.

    p(x) is 1 or 0, so r q(x) < p(x) tests whether x is the argmax, and the residual of a row that rejects x is its
    argmax. `best_N` has one token more than `tokens`.
    """
    path: list[int] = []
    node = ROOT
    for child, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent == node and token == best_N[node + 1]:
            path.append(child)
            node = child
    return Verdict(path, best_N[node + 1])
