"""The settings of decoding, resolved from a config."""

from dataclasses import dataclass

from specbench.acceptance import Verification, accept_exact
from specbench.gamma import Constant, Gamma
from specbench.sampling import Sampling

NOTHING_DRAFTED = Constant(0)
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class DecodingSpec:
    """Everything that determines how prompts are decoded, resolved from the config once.

    Without a chosen gamma nothing is drafted.
    """

    sampling: Sampling
    max_new_tokens: int
    verification: Verification
    gamma: Gamma = NOTHING_DRAFTED

    @property
    def drafting(self) -> Sampling:
        """The sampling of the draft: the target's, or greedy if the rule requires a greedy draft."""
        return GREEDY if self.verification.greedy_draft else self.sampling

    @classmethod
    def algorithm_1(cls, sampling: Sampling, max_new_tokens: int, gamma: int = 0) -> "DecodingSpec":
        """The paper's Algorithm 1 at a constant gamma."""
        return cls(sampling, max_new_tokens, Verification(accept_exact, sampling), Constant(gamma))
