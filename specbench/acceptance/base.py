"""What goes into a rule and what comes out: a proposal, a verdict, and the residual that all lossless rules share.

Shapes: G drafted tokens, K tokens picked from the vocabulary, L positions, V tokens of the vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from specbench.sampling import draw, one_hot

# Below this the residual is what rounding left of p - q, not a distribution.
RESIDUAL_EPSILON = 1e-9


# How the children of one node of a tree were chosen: not drawn at all (the likeliest tokens, continuations found in a
# text), as independent draws from q, or as distinct draws from q.
Children = Literal["fixed", "replaced", "distinct"]


class Proposal(NamedTuple):
    """Drafted tokens [G] and the standardised distributions [G, V] they were drawn from.

    A draft may return fewer tokens than it was asked for, or none. Without `q_GV` each token was certain: it had all
    the mass, as at T = 0 or where a text is copied. `operations` counts the arithmetic operations that drafting took
    where they depend on what was drawn (`drafts.cascade`); None: the draft's `operations` a token.

    With `parents` the tokens are nodes of a tree: `parents[i]` is the index of token i's parent, an earlier one, or -1
    for the text's last token; siblings come in the order drawn. `q_NV` has a row [V] for each: what its parent would
    have drawn it from as its first child; `children` says how children were chosen.
    """

    tokens: list[int]
    q_GV: Tensor | None = None
    operations: float | None = None
    parents: Sequence[int] | None = None
    children: Children = "fixed"
    q_NV: Sequence[Tensor] | None = None

    def q(self, like_GV: Tensor) -> Tensor:
        """q [G, V], of the width and on the device of `like_GV`."""
        return one_hot(self.tokens, like_GV.shape[-1], like_GV.device) if self.q_GV is None else self.q_GV


class Verdict(NamedTuple):
    """The outcome of one pass: the drafted tokens at the indices `path` are accepted, in this order, and `token`
    follows them. The path of a chain of tokens is 0, 1, ..., n - 1."""

    path: Sequence[int]
    token: int

    @classmethod
    def chain(cls, accepted: int, token: int) -> "Verdict":
        """The first `accepted` drafted tokens, then `token`."""
        return cls(range(accepted), token)

    @property
    def accepted(self) -> int:
        return len(self.path)


# (p_GV, q_GV, drafted tokens, generator); p_GV has one row more than q_GV: the target's distribution after the last
# drafted token.
AcceptanceRule = Callable[[Tensor, Tensor, Sequence[int], torch.Generator], Verdict]


def residual(p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """norm(max(0, p - q)), section 2.3. Where p and q agree nothing is left to norm, and p itself is returned:
    a rejection there can only come from rounding."""
    excess_LV = (p_LV - q_LV).clamp(min=0)
    mass_L1 = excess_LV.sum(-1, keepdim=True)
    return torch.where(mass_L1 > RESIDUAL_EPSILON, excess_LV / mass_L1.clamp(min=RESIDUAL_EPSILON), p_LV)


class TokenRule(ABC):
    """A rule that tests each drafted token on p and q at its own position, and stops at the first rejection.

    Lossy rules are of this kind. Their three parts are plain formulas, so that acceptance and total variation can be
    computed (`measure.lossy`) and not only sampled.
    """

    @abstractmethod
    def accept_probability(self, p_LK: Tensor, q_LK: Tensor, p_LV: Tensor) -> Tensor:
        """The probability [L, K] that a token is accepted if it is drafted; `p_LV` is the row that its p comes from."""

    @abstractmethod
    def recovered(self, p_LV: Tensor, q_LV: Tensor) -> Tensor:
        """The distribution [L, V] of the token that replaces a rejected one."""

    def bonus(self, p_LV: Tensor) -> Tensor:
        """The distribution [L, V] of the token that follows a fully accepted proposal: the target's own."""
        return p_LV

    def __call__(self, p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int], generator: torch.Generator) -> Verdict:
        count = len(drafted_G)
        accepted = 0
        if count:
            index_G1 = torch.tensor(drafted_G, device=p_GV.device).unsqueeze(-1)
            probability_G1 = self.accept_probability(
                p_GV[:count].gather(-1, index_G1), q_GV.gather(-1, index_G1), p_GV[:count]
            )
            uniform_G1 = torch.rand(count, 1, generator=generator, device=p_GV.device)
            accepted = int((uniform_G1 < probability_G1).cumprod(0).sum())
        p_1V = p_GV[accepted : accepted + 1]
        next_1V = self.bonus(p_1V) if accepted == count else self.recovered(p_1V, q_GV[accepted : accepted + 1])
        return Verdict.chain(accepted, draw(next_1V[0], generator))
