"""The input and output of a rule: a proposal, a verdict, and the residual that all lossless rules share.

Shapes: G drafted tokens, K tokens picked from the vocabulary, L positions, V tokens of the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from specbench.deferred import torch
from specbench.kernels import rows as kernels
from specbench.kernels.rows import RuleInC
from specbench.sampling import DrawnNumbers, Sampling, checked, drawn, one_hot, trials, uniforms
from specbench.theory.trees import ROOT

if TYPE_CHECKING:
    from torch import Tensor

# Below this the residual is what rounding left of p - q, not a distribution.
RESIDUAL_EPSILON = 1e-9

# How the children of one node of a tree were chosen: not drawn at all (the likeliest tokens, continuations found in a
# text), as independent draws from q, or as distinct draws from q.
Children = Literal["fixed", "replaced", "distinct"]


class UnverifiedTokens(NamedTuple):
    """Tokens that the target reads in the same run as a proposal, but that are not candidates for acceptance.

    They are further nodes of the tree, numbered after the proposal's tokens. A parent is the number of an earlier node,
    of the proposal or of these, or -1 for the root (the last token of the sequence).
    """

    tokens: list[int]
    parents: list[int]


class Proposal(NamedTuple):
    """Draft tokens [G] and the standardised distributions [G, V] that they were drawn from.

    A draft may return fewer tokens than requested, or none. Without `q_GV`, q is one-hot at each token, as at T = 0 or
    for copied tokens. `operations` counts the arithmetic operations of drafting if they depend on the drawn tokens
    (`methods.cascade.draft`); None: the draft's `operations` for each token.

    With `parents` the tokens are nodes of a tree: `parents[i]` is the index of token i's parent, an earlier one, or -1
    for the root; siblings are in the order drawn. `q_NV` has a row [V] for each token: the distribution of its parent's
    first child; `children` says how children were chosen. `unverified` is read in the same run, and the draft receives
    the target's logits after it (`algorithm.draft.DraftSession.after_unverified`).
    """

    tokens: list[int]
    q_GV: Tensor | None = None
    operations: float | None = None
    parents: Sequence[int] | None = None
    children: Children = "fixed"
    q_NV: Sequence[Tensor] | None = None
    asked: int = 0
    unverified: UnverifiedTokens | None = None

    @property
    def size(self) -> int:
        """Tokens that the target reads."""
        return len(self.tokens)

    def is_plain(self, most: int, vocabulary_size: int) -> bool:
        """Whether it is a chain of up to `most` tokens with nothing beside it, and C kernels can read its q."""
        if self.parents is not None or self.unverified is not None or len(self.tokens) > most:
            return False
        fits = self.q_GV is None or (kernels.is_whole(self.q_GV) and self.q_GV.shape[-1] == vocabulary_size)
        return fits and all(0 <= token < vocabulary_size for token in self.tokens)

    def each_NV(self, like_V: Tensor) -> Sequence[Tensor]:
        """A row [V] for each node of a tree; for a token that was not drawn a row of its own, with all mass on it."""
        return self.q_NV or self.q(like_V.unsqueeze(0)).unbind()

    def q(self, like_GV: Tensor) -> Tensor:
        """q [G, V], of the width and on the device of `like_GV`."""
        return one_hot(self.tokens, like_GV.shape[-1], like_GV.device) if self.q_GV is None else self.q_GV


class PendingProposal(NamedTuple):
    """A chain of tokens [G] that is still on the device, with the q [G, V] that they were drawn from.

    It ends at the first token of `ends_E`; later tokens were computed before that was known, and are ignored. NOT_DRAWN
    marks a q that was not finite.
    """

    tokens_G: Tensor
    q_GV: Tensor | None
    ends_E: Tensor

    @property
    def size(self) -> int:
        """Tokens that the target reads, including those after an end of sequence."""
        return len(self.tokens_G)

    @property
    def parents(self) -> None:
        """It is no tree."""
        return None

    @property
    def unverified(self) -> None:
        """None: no further tokens are read."""
        return None

    @property
    def read_G(self) -> Tensor:
        """The tokens as a model reads them: an arbitrary token instead of NOT_DRAWN."""
        return self.tokens_G.clamp(min=0)

    def proposed(self) -> Tensor:
        """The number of tokens [1] of the proposal, up to its end."""
        goes_on_G = (self.tokens_G.unsqueeze(-1) != self.ends_E).all(-1)
        return (goes_on_G.cumprod(0).sum(0, keepdim=True) + 1).clamp(max=len(self.tokens_G))

    def q(self, like_GV: Tensor) -> Tensor:
        """q [G, V], of the width of `like_GV`."""
        if self.q_GV is not None:
            return self.q_GV
        rows_GV = like_GV.new_zeros(len(self.tokens_G), like_GV.shape[-1])
        return rows_GV.scatter_(-1, self.read_G.unsqueeze(-1), 1.0)

    def brought(self) -> Proposal:
        """The proposal on the host, in one copy. Raises FloatingPointError if q is not finite."""
        *tokens, count = torch.cat([self.tokens_G, self.proposed()]).tolist()
        return self.known(tokens, count)

    def known(self, tokens: list[int], count: int) -> Proposal:
        """The proposal, from a copy of `tokens_G` on the host and its number of tokens."""
        q_GV = None if self.q_GV is None else self.q_GV[:count]
        return Proposal(checked(tokens[:count]), q_GV, asked=len(tokens))


class Verdict(NamedTuple):
    """The outcome of one pass: the accepted drafted tokens, and the token that follows them.

    `path` holds the indices of the accepted tokens in order (0, 1, ..., n - 1 for a chain), `token` the next token.
    """

    path: Sequence[int]
    token: int

    @classmethod
    def chain(cls, accepted: int, token: int) -> Verdict:
        """The first `accepted` drafted tokens, then `token`."""
        return cls(range(accepted), token)

    @property
    def accepted(self) -> int:
        return len(self.path)


# (p_GV, q_GV, drafted tokens, generator); p_GV has one row more than q_GV: the target's distribution after the last
# drafted token.
if TYPE_CHECKING:
    AcceptanceRule = Callable[[Tensor, Tensor, Sequence[int], torch.Generator], Verdict]
    Numbers = torch.Generator | DrawnNumbers
else:
    AcceptanceRule = Callable


@dataclass(frozen=True)
class DraftedTree:
    """Drafted tokens and the index of each one's parent, ROOT or an earlier node; siblings in the order drawn."""

    tokens: Sequence[int]
    parents: Sequence[int]

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> DraftedTree:
        return cls(tokens, range(ROOT, len(tokens) - 1))

    @cached_property
    def children(self) -> list[list[int]]:
        """The children of the root, then of each node, in order."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            found[parent + 1].append(node)
        return found


class Chance(Protocol):
    """The source of a rule's random decisions."""

    def accepts(self, node: int, over: Tensor, under: Tensor) -> bool:
        """Whether r `under` < `over`, r uniform in [0, 1) and the node's own: true with probability over / under."""

    def draw(self, row_V: Tensor) -> int:
        """A token drawn from `row_V`."""


class NodeRows(Protocol):
    """One row [V] per node: a tensor, a list, or an object that makes a row on request."""

    def __getitem__(self, node: int, /) -> Tensor: ...


def residual(p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """norm(max(0, p - q)), the residual distribution of section 2.3.

    If p = q, p is returned: a rejection can then only come from rounding.
    """
    return normalised((p_LV - q_LV).clamp(min=0), p_LV)


def normalised(excess_LV: Tensor, p_LV: Tensor) -> Tensor:
    """`excess_LV`, what is left of p, as distributions; p for rows whose rest is only rounding."""
    mass_L1 = excess_LV.sum(-1, keepdim=True)
    return torch.where(mass_L1 > RESIDUAL_EPSILON, excess_LV / mass_L1.clamp(min=RESIDUAL_EPSILON), p_LV)


class ChainRule(ABC):
    """A rule for chains that decides on the device of p and q, without copies to the host.

    by_argmax: at T = 0 only the argmax tokens of p determine its verdict, as for every lossless rule that reads the p
        that tokens are sampled from.
    greedy_draft: tokens are drafted by argmax of q at every temperature, so that q is one-hot.
    as_a_whole: it tests a proposal as a whole, and not token by token.
    k_sequential: on trees it is K-SEQ.
    own_alpha: the name of its own alpha at T > 0, if it is not Algorithm 1's (`drafted_LV`).
    numbers_beforehand: it takes its random numbers in the order of `sampling.DrawnNumbers`.
    draws_at_each: each place takes one number, from which a token is drawn, and tests take none.
    in_c: the same rule in the C kernels, if they have it. The same random numbers give the same verdict, apart from
        sums that are rounded in another order.
    """

    by_argmax: ClassVar[bool] = False
    greedy_draft: ClassVar[bool] = False
    as_a_whole: ClassVar[bool] = False
    k_sequential: ClassVar[bool] = False
    own_alpha: ClassVar[str | None] = None
    numbers_beforehand: ClassVar[bool] = False
    draws_at_each: ClassVar[bool] = False

    @property
    def in_c(self) -> RuleInC | None:
        return None

    def drafted_LV(self, q_LV: Tensor) -> Tensor:
        """Rows d [L, V] of a lossless rule with its own alpha, which is the mean of sum_x p(x) d(x).

        Given that token x follows, it was drafted and accepted with probability d(x).
        """
        raise NotImplementedError

    def on_chain(self, p_GV: Tensor, proposal: Proposal, generator: torch.Generator) -> Verdict:
        """The verdict on a chain that the host knows, by one call of the C kernels if they have p, q and the rule."""
        rule = self.in_c
        if rule is None or not kernels.are_verified(p_GV, proposal.q_GV):
            return self(p_GV, proposal.q(p_GV), proposal.tokens, generator, proposal.asked)
        count = max(proposal.asked, proposal.size)
        numbers = DrawnNumbers.of(count, generator, p_GV.device, rule.draws_at_each)
        accepted, token = kernels.verified(
            rule, p_GV, proposal.q_GV, proposal.tokens, numbers.trials_G, numbers.next_1, RESIDUAL_EPSILON
        )
        checked([token])
        return Verdict.chain(accepted, token)

    def on_tree(self, p_NV: NodeRows, proposal: Proposal, tree: DraftedTree, chance: Chance) -> Verdict:
        """The verdict on a tree. Raises ValueError for a rule that reads only chains."""
        raise ValueError("no rule for trees")

    @abstractmethod
    def decide(
        self, p_GV: Tensor, q_GV: Tensor, drafted_G: Tensor, count: Tensor | int, generator: Numbers
    ) -> tuple[Tensor, Tensor]:
        """The number of accepted tokens [1], and the token [1] that follows them (`sampling.drawn`).

        The first `count` of `drafted_G` are the proposal; the others are padding, which only consumes random
        numbers.
        """

    def __call__(
        self, p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int], generator: torch.Generator, asked: int = 0
    ) -> Verdict:
        """The verdict on tokens that the host knows; `asked`: see `Proposal`."""
        count = len(drafted_G)
        if (missing := asked - count) > 0:
            p_GV = torch.cat([p_GV, p_GV[-1:].expand(missing, -1)])
            q_GV = torch.cat([q_GV, q_GV[-1:].expand(missing, -1)])
            drafted_G = [*drafted_G, *[drafted_G[-1]] * missing]
        index_G = torch.tensor(drafted_G, dtype=torch.long, device=p_GV.device)
        accepted, token = torch.cat(self.decide(p_GV, q_GV, index_G, count, generator)).tolist()
        checked([token])
        return Verdict.chain(accepted, token)


def leading(passed_G: Tensor, count: Tensor | int) -> Tensor:
    """The number [1] of tokens that passed before the first failure, among the first `count`."""
    return _of_first(count, passed_G).cumprod(0).sum(0, keepdim=True)


def last_passed(passed_G: Tensor, count: Tensor | int) -> Tensor:
    """The index [1], from 1, of the last token that passed among the first `count`; 0 if none did."""
    number_G = torch.arange(1, len(passed_G) + 1, device=passed_G.device)
    return (number_G * _of_first(count, passed_G)).amax(0, keepdim=True)


def _of_first(count: Tensor | int, passed_G: Tensor) -> Tensor:
    """Whether each token passed and is among the first `count`."""
    if isinstance(count, int) and count == len(passed_G):
        return passed_G
    return passed_G & (torch.arange(len(passed_G), device=passed_G.device) < count)


def draw_next(
    accepted_1: Tensor,
    count: Tensor | int,
    p_GV: Tensor,
    q_GV: Tensor,
    recovered: Callable[[Tensor, Tensor], Tensor],
    bonus: Callable[[Tensor], Tensor],
    generator: Numbers,
) -> Tensor:
    """Token [1] after `accepted_1` tokens: from `bonus` (p) if all `count` are accepted, otherwise from `recovered`."""
    if isinstance(count, int) and (count == 0 or p_GV.is_cpu):  # the host knows at once which of the two it needs
        accepted = int(accepted_1) if count else 0
        p_1V = p_GV[accepted : accepted + 1]
        law_1V = bonus(p_1V) if accepted == count else recovered(p_1V, q_GV[accepted : accepted + 1])
    else:
        p_1V, q_1V = p_GV.index_select(0, accepted_1), q_GV.index_select(0, accepted_1.clamp(max=len(q_GV) - 1))
        law_1V = torch.where((accepted_1 < count).unsqueeze(-1), recovered(p_1V, q_1V), bonus(p_1V))
    return drawn(law_1V, uniforms(1, generator, p_GV.device))


def target_itself(p_LV: Tensor) -> Tensor:
    """The bonus of a lossless rule: p."""
    return p_LV


class TokenRule(ChainRule):
    """A rule that tests each draft token independently, from p and q at its position, up to the first rejection.

    Lossy rules are of this kind. Their three parts are formulas, so that acceptance and total variation can be
    computed (`analysis.acceptance.agreement`) instead of sampled.
    """

    numbers_beforehand: ClassVar[bool] = True

    @abstractmethod
    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        """The probability [L, K] that a token is accepted if it is drafted; `p_LV` is the row that its p comes from."""

    @abstractmethod
    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        """The distribution [L, V] of the token that replaces a rejected token."""

    def bonus(self, p_LV: Tensor) -> Tensor:
        """The distribution [L, V] of the token that follows a fully accepted proposal: the target's own."""
        return p_LV

    def decide(
        self, p_GV: Tensor, q_GV: Tensor, drafted_G: Tensor, count: Tensor | int, generator: Numbers
    ) -> tuple[Tensor, Tensor]:
        before_GV, index_G1 = p_GV[: len(drafted_G)], drafted_G.unsqueeze(-1)
        probability_G1 = self.accept_probability(before_GV.gather(-1, index_G1), q_GV.gather(-1, index_G1), before_GV)
        uniform_G1 = trials(len(drafted_G), generator, p_GV.device).unsqueeze(-1)
        accepted_1 = leading((uniform_G1 < probability_G1).squeeze(-1), count)
        return accepted_1, draw_next(accepted_1, count, p_GV, q_GV, self.recovered, self.bonus, generator)


@dataclass(frozen=True)
class Verification:
    """An acceptance rule, and the p that it reads.

    p is standardised as tokens are sampled, or, for a rule that compares p before argmax, by `sampling.before_argmax`.
    """

    rule: AcceptanceRule
    sampling: Sampling

    @property
    def lossy(self) -> TokenRule | None:
        """The rule, if it is lossy with formulas for what it emits; otherwise None, also for acceptance at random."""
        return self.rule if isinstance(self.rule, TokenRule) else None

    @property
    def own_alpha(self) -> str | None:
        """The name of this rule's own alpha (`ChainRule.own_alpha`); None if it is Algorithm 1's."""
        return None if self.sampling.temperature == 0 else self.traits.own_alpha

    @property
    def traits(self) -> ChainRule | type[ChainRule]:
        """The holder of the rule's class variables: for a plain function `ChainRule`, with their defaults."""
        return self.rule if isinstance(self.rule, ChainRule) else ChainRule

    @property
    def in_c(self) -> RuleInC | None:
        """The rule in the C kernels; None if they lack it."""
        return self.rule.in_c if isinstance(self.rule, ChainRule) else None

    @cached_property
    def argmax_only(self) -> bool:
        """Whether only the argmax tokens of p determine the verdict."""
        return self.sampling.temperature == 0 and self.traits.by_argmax
