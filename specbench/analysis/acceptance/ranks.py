"""Acceptance by rank: how often a draft's first, second, ... child is accepted, by teacher forcing.

It is read along the target's own completion together with alpha (`analysis.acceptance.agreement`). Expected tokens of
trees are made from it (`trees.expected_tree_tokens`, `analysis.forecast.tree_passes`), and compared with the best that
any rule could do. If children do not all come from the row of q that they are scored with (copies of several places,
several drafts in one tree), the tree is grown at each position instead (`acceptance_when_grown`).

Shapes: L positions of a chunk, V tokens of the vocabulary, K children.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Children
from specbench.algorithm.acceptance.expected import (
    DRAWS,
    Ranked,
    distinct,
    fixed,
    k_sequential,
    of_k_sequential,
    optimal_acceptance,
    replaced,
)
from specbench.algorithm.acceptance.tree_rules import ROUNDS, acceptance_by_rank
from specbench.algorithm.tree_draft import TreeDraft
from specbench.engine.session import Model, Prompt
from specbench.records.units import AcceptanceByRank
from specbench.sampling import Sampling, standardise

MOST_RANKS = 8  # children of a node that are tried
K_SEQ = "k-seq"
OPTIMUM = {"replaced": "optimum, replaced", "distinct": "optimum, distinct"}  # by how the children are drawn


@dataclass
class Ranks:
    """One draft along one completion of the target.

    At T = 0 children are the likeliest tokens of q in each way of choosing them, so `fixed` is the only way given.

    Attributes:
        accepted: by the way of choosing children, the probability that the child of each rank is accepted, summed over
            the tokens of the completion. K-SEQ has a way for each number of children (`k_seq_of`).
        given: the same at each token, given that token: with the same random numbers for neighbours, as
            `Agreement.ratio`.
        of_children: by rule, and by the bound on all rules, the probability that one of 1, 2, ... children is accepted,
            summed over the `places` at which the bound was computed.
        ahead: the same at the second, third, ... level of a tree, at each token for trees that began so many tokens
            before it; only of drafts whose acceptance falls with the position (`algorithm.draft.ScoresAhead`).
    """

    accepted: dict[str, list[float]] = field(default_factory=dict)
    given: dict[str, list[list[float]]] = field(default_factory=dict)
    of_children: dict[str, list[float]] = field(default_factory=dict)
    places: int = 0
    ahead: list["Ranks"] = field(default_factory=list)

    def given_for(self, children: str) -> list[list[list[float]]]:
        """`given` of children that are chosen so, [levels, tokens, ranks]; one level if it holds for all."""
        return [one.given.get(children, one.given["fixed"]) for one in (self, *self.ahead)]

    def accepted_for(self, children: str) -> list[float]:
        """`accepted` of children that are chosen so."""
        return self.accepted.get(children, self.accepted["fixed"])


def k_seq_of(count: int) -> str:
    """The way of choosing children under which `Ranks` has K-SEQ on nodes of so many."""
    return f"{K_SEQ} {count}"


@dataclass
class RankReader:
    """Reads the ranks of one draft along one completion, `most` children at each token, drawn by `generator`.

    At every `bound_every`-th token the rules are compared with the bound; 0: nowhere. `levels` of a tree are read where
    they differ. `k_seq` lists the numbers of children for which K-SEQ is read; none if another rule verifies.
    """

    sampling: Sampling
    generator: torch.Generator
    bound_every: int = 0
    most: int = MOST_RANKS
    levels: int = 1
    k_seq: Collection[int] = ()
    found: Ranks = field(default_factory=Ranks)
    _read: int = 0

    def read(self, p_LV: Tensor, q_LV: Tensor, written_L1: Tensor, level: int = 0) -> None:
        """Take in L more tokens of the completion at this level.

        `q_LV` is before argmax: at T = 0 as at T = 1; a row of zeros has no children.
        """
        if level >= self.levels:
            return
        if level > len(self.found.ahead):
            self.found.ahead.append(Ranks())
        found = self.found.ahead[level - 1] if level else self.found
        selections = {"fixed": fixed}
        if self.sampling.temperature > 0:
            draws = 1 if level else DRAWS
            selections |= {"replaced": replaced, "distinct": partial(distinct, generator=self.generator, times=draws)}
            selections |= {k_seq_of(count): partial(k_sequential, children=count) for count in self.k_seq}
        silent_L1 = q_LV.sum(-1, keepdim=True) == 0
        ranked = {
            name: Ranked(*(part.masked_fill(silent_L1, 0.0) for part in select(p_LV, q_LV, written_L1, self.most)))
            for name, select in selections.items()
        }
        for name, one in ranked.items():
            _add(found.accepted, name, one.accepted_LK)
            found.given.setdefault(name, []).extend(one.given_LK.tolist())
        if level:
            return
        if self.bound_every:
            # At T = 0 there is no bound to compute: what a draw from p hits is all that can be had.
            stride = self.bound_every if self.sampling.temperature > 0 else 1
            places = list(range(-self._read % stride, len(p_LV), stride))
            self._add_bounds(p_LV[places], q_LV[places], ranked, places)
        self._read += len(p_LV)

    def _add_bounds(self, p_LV: Tensor, q_LV: Tensor, ranked: dict[str, Ranked], places: list[int]) -> None:
        for name in (name for name in ranked if not name.startswith(K_SEQ)):
            _add(self.found.of_children, name, ranked[name].accepted_LK[places].cumsum(-1))
        self.found.places += len(places)
        if self.sampling.temperature == 0:
            return
        _add(self.found.of_children, K_SEQ, of_k_sequential(p_LV, q_LV, self.most))
        for p_V, q_V in zip(p_LV.cpu().double().numpy(), q_LV.cpu().double().numpy(), strict=True):
            for name, title in OPTIMUM.items():
                bound_K = optimal_acceptance(p_V, q_V, self.most, name == "replaced")
                _add(self.found.of_children, title, torch.from_numpy(bound_K)[None])


def _add(sums: dict[str, list[float]], name: str, more_LK: Tensor) -> None:
    before = sums.get(name, [0.0] * more_LK.shape[-1])
    sums[name] = [old + new for old, new in zip(before, more_LK.cpu().double().sum(0).tolist(), strict=True)]


def acceptance_vector(texts: Sequence[Ranks], children: Children) -> AcceptanceByRank:
    """P[k]: the share of tokens, over all completions, at which the child of rank k is accepted; zeros without tokens.

    Sequoia's dynamic programme takes it. Drafts whose acceptance falls with the position have a P for each level.
    """
    levels = zip(*([text, *text.ahead] for text in texts if text.given), strict=False)
    vectors = [_share(of_texts, children) for of_texts in levels]
    return vectors if len(vectors) > 1 else vectors[0] if vectors else [0.0] * MOST_RANKS


def k_seq_acceptance(texts: Sequence[Ranks], widths: Sequence[int]) -> list[list[float]]:
    """P[k] under K-SEQ at each level of a tree whose nodes have `widths` children, on which P depends."""
    levels = [*zip(*([text, *text.ahead] for text in texts if text.given), strict=False)]
    return [
        _share(levels[min(level, len(levels) - 1)], k_seq_of(width))
        for level, width in enumerate(widths)
        if len(levels) == 1 or level < len(levels)
    ]


def _share(texts: Sequence[Ranks], children: str) -> list[float]:
    tokens = sum(len(text.given_for(children)[0]) for text in texts)
    return [sum(column) / tokens for column in zip(*(text.accepted_for(children) for text in texts), strict=True)]


def acceptance_when_grown(
    target: Model,
    draft: TreeDraft,
    prompts: Sequence[Prompt],
    texts: Sequence[Sequence[int]],
    sampling: Sampling,
    generator: torch.Generator,
) -> list[float]:
    """P[k], the share of positions at which the child of rank k is accepted; zeros without completions.

    It is the expected acceptance of the children that `draft`, whose plan is one level of `MOST_RANKS` nodes, grows at
    each position. The target wrote `texts` under this `sampling`.
    """
    sums, places = [0.0] * MOST_RANKS, 0
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = [*prompt.prefix, *text]
        session = target.start(prompt)
        drafting = draft.start_on(session, prompt, sampling)
        for end in range(len(prompt.prefix), len(tokens)):
            proposal = drafting.propose(tokens[:end], 1, generator)
            p_V = standardise(session.extend(tokens[session.length : end])[-1:], sampling, target.vocabulary_size)[0]
            q_NV = [p_V] * len(proposal.tokens) if proposal.q_NV is None else proposal.q_NV
            for rank, accepted in enumerate(acceptance_by_rank(p_V, q_NV, proposal.tokens, ROUNDS[proposal.children])):
                sums[rank] += accepted
            if proposal.parents is not None:
                drafting.select([])
            drafting.rollback(end)
            places += 1
    return [total / max(1, places) for total in sums]
