"""The result of decoding one prompt. Times in seconds."""

from dataclasses import dataclass, field


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
