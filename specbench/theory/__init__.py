"""The paper's equations on plain numbers (arXiv 2211.17192v2). No torch, no data.

Symbols: alpha, the acceptance rate (Cor 3.6); gamma, tokens drafted in a pass; c, the time of one M_q run over one
M_p run; c_hat, the same in arithmetic operations per token (Def 3.10).

>>> round(walltime_improvement(alpha=0.75, gamma=7, c=0.02), 3)
3.157
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, product


def expected_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens of one target pass, (1 - alpha^(gamma+1)) / (1 - alpha): Eq. 1.

    Summed as 1 + alpha + ... + alpha^gamma, which is the same and holds at alpha = 1.
    """
    return sum(alpha**i for i in range(gamma + 1))


def expected_tokens_by_position(accepted: Sequence[float]) -> float:
    """Expected tokens of one target pass, 1 + a_1 + a_1 a_2 + ...

    a_i is the probability that the i-th drafted token is accepted if all before it were. Equation 1 if all a_i are
    alpha.
    """
    return 1.0 + sum(accumulate(accepted, lambda reached, chance: reached * chance))


def walltime_improvement(alpha: float, gamma: int, c: float, verify_cost: float = 1.0) -> float:
    """Expected speedup, (1 - alpha^(gamma+1)) / ((1 - alpha)(gamma c + 1)): Theorem 3.8.

    The theorem assumes that a pass over gamma+1 positions costs one target step. For a calibrated speedup
    `verify_cost`, the measured T_p(gamma+1) / T_p(1), replaces that 1.
    """
    return expected_tokens(alpha, gamma) / (gamma * c + verify_cost)


def horizontal_improvement(
    alphas: Sequence[float], costs: Sequence[float], lengths: Sequence[int], verify_cost: float = 1.0
) -> float:
    """Expected speedup of a horizontal cascade: Theorem 3.8 with the tokens by position.

    The i-th draft proposes `lengths[i]` tokens with acceptance rate `alphas[i]` at `costs[i]` target steps each (Chen
    et al. 2023, "Cascade Speculative Drafting", section 4, whose drafts are independent given the text).
    """
    accepted = [alpha for alpha, length in zip(alphas, lengths, strict=True) for _ in range(length)]
    drafting = sum(cost * length for cost, length in zip(costs, lengths, strict=True))
    return expected_tokens_by_position(accepted) / (drafting + verify_cost)


def horizontal_lengths(
    alphas: Sequence[float], costs: Sequence[float], verify_costs: Mapping[int, float]
) -> tuple[int, ...]:
    """The lengths, at least 1 each, that maximise `horizontal_improvement`; among equals the shortest.

    `verify_costs` is the verification cost by drafted tokens: with v = 1 a free draft would have no optimal length.
    Only sums of lengths that it contains are considered; if it is empty, the result is empty.
    """
    every = product(range(1, max(verify_costs, default=0) + 1), repeat=len(alphas))
    ranked = sorted((one for one in every if sum(one) in verify_costs), key=sum)
    return max(
        ranked,
        key=lambda lengths: horizontal_improvement(alphas, costs, lengths, verify_costs[sum(lengths)]),
        default=(),
    )


def tree_improvement(tokens: float, depth: float, c: float, verify_cost: float = 1.0) -> float:
    """Expected speedup of trees, G(n, d) / (t(n) + d c): Theorem 3.8 with v (Chen et al. 2024, "Sequoia", section 4).

    `tokens` is G, the tokens of a pass over the tree (`trees.expected_tree_tokens`), `depth` d in draft steps, since
    one step drafts a level, and `verify_cost` t, the cost of verifying the tree's n nodes. A chain's depth is its
    gamma.
    """
    return tokens / (depth * c + verify_cost)


@dataclass(frozen=True)
class Roofline:
    """The least time of a run of a model over n tokens: it reads all weights once, and multiplies each with n rows.

    `reading` is the time to read the weights, `multiplying` the time of one token's multiply-adds, both at a device's
    fastest (Williams et al. 2009, "Roofline"). For a mixture of experts these are a step's weights, and `expert_share`
    is the share of one token's experts among them.
    """

    reading: float
    multiplying: float
    expert_share: float = 0.0

    def of_run(self, tokens: float, experts: float = 1.0) -> float:
        """The least time of a run over so many tokens that reads so many times the experts of a step."""
        reading = self.reading * (1 + self.expert_share * (experts - 1))
        return max(reading, tokens * self.multiplying)

    def verify_cost(self, tokens: float, experts: float = 1.0) -> float:
        """v(tokens) if a run takes as many times its least time as a step does."""
        return self.of_run(tokens, experts) / self.of_run(1)

    @property
    def turning(self) -> float:
        """Omega: the number of tokens from which on multiplying takes longer than reading, so that v grows with it."""
        return self.reading / self.multiplying


def operations_increase(alpha: float, gamma: int, c_hat: float) -> float:
    """Theorem 3.11: the factor of operations, (1 - alpha)(gamma c_hat + gamma + 1) / (1 - alpha^(gamma+1))."""
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def guaranteed_improvement(alpha: float, c: float) -> float:
    """A lower bound on the best speedup if alpha > c, (1 + alpha) / (1 + c): Corollary 3.9."""
    return (1 + alpha) / (1 + c)


@lru_cache(maxsize=8192)  # a report draws the same curves again and again
def optimal_gamma(alpha: float, c: float, limit: int = 100) -> int:
    """The gamma from 1 to `limit` that maximises Theorem 3.8; the smallest of equal gammas."""
    expected = list(accumulate(alpha**power for power in range(limit + 1)))  # `expected_tokens` of each gamma, in turn
    return max(range(1, limit + 1), key=lambda gamma: expected[gamma] / (gamma * c + 1.0))


def accepted_per_drafted(alpha: float, gamma: int) -> float:
    """Expected accepted over drafted tokens, alpha (1 - alpha^gamma) / (gamma (1 - alpha)). Not alpha itself."""
    return (expected_tokens(alpha, gamma) - 1) / gamma
