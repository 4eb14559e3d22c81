"""The settings of decoding, resolved from a config, and the result of decoding one prompt. Times in seconds."""

from dataclasses import dataclass, field

from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.gamma import Constant, Gamma
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


# The result of decoding one prompt. Times in seconds.


@dataclass(frozen=True)
class Pass:
    """One target pass of speculative decoding; times in seconds.

    `emitted` is `accepted` + 1, minus the tokens after an end of sequence inside the block. `draft_operations`: see
    `Proposal.operations`.
    """

    drafted: int
    accepted: int
    emitted: int
    draft_s: float
    verify_s: float
    accept_s: float
    tokens: list[int] = field(default_factory=list)  # as drafted, rejected tokens too
    draft_operations: float | None = None
    parents: list[int] | None = None  # of a tree: of each token, see `Proposal.parents`
    path: list[int] | None = None  # of a tree: the accepted tokens, by index


@dataclass(frozen=True)
class Trace:
    """The result of decoding one prompt, and its times in seconds."""

    tokens: list[int]
    start_s: float  # encoder and prefill, of the draft too
    decode_s: float  # everything after that
    steps_s: list[float] = field(default_factory=list)  # autoregressive: one entry a token
    passes: list[Pass] = field(default_factory=list)  # speculative: one entry a target pass
    draft_start_s: float = 0.0  # the draft's part of `start_s`
    rows: list[int] | None = None  # of a batch: how many rows each step or pass had; `decode_s` is then a share
