"""The type of a profile: how a draft agrees with a target, as a small JSON that other programs can load.

It holds quantities that depend only on the two models and the prompts, each with its interval and sample size, and
speedups by gamma, which were measured on the machine that it names.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from specbench.stats import Interval

FORMAT: Literal["specbench-profile"] = "specbench-profile"
PROFILE_VERSION: Literal[1] = 1


class Share(TypedDict):
    """A share of tokens with its 95% interval over prompts."""

    value: float
    low: float | None
    high: float | None
    prompts: int
    tokens: Annotated[int, "that it is a share of"]


class PositionShare(Share):
    """The share that was accepted of the drafted tokens that were reached at a position."""

    position: Annotated[int, "from 1; of a tree its level"]


class RankShare(Share):
    """The share of visits to a node with children in which the child of this rank was accepted."""

    rank: Annotated[int, "from 1: the draft's likeliest child"]
    children: Annotated[str | None, "how the children were chosen (tree.children); null for the children of a run"]


class RangeShare(Share):
    """alpha where something lies in a range of tokens, both ends within it."""

    first: int
    last: int


class GammaSpeed(TypedDict):
    """The speedup of one gamma in a range of contexts."""

    gamma: int
    speedup: Interval
    tokens: int
    run_id: str


class GammaRange(TypedDict):
    """Measured speedups where the context's length lies in a range, and the gamma that was fastest there."""

    first: int
    last: int
    batch: int
    best: int
    gammas: list[GammaSpeed]


class TaskProfile(TypedDict):
    """The profile of one task."""

    task: str
    sources: Annotated[list[str], "ids of the records"]
    accept: Annotated[str, "the acceptance rule of the records; alpha itself is of Algorithm 1"]
    lossy: bool
    dtype: str
    hardware: str
    created: Annotated[str, "ISO 8601, UTC"]
    alpha: Annotated[Share, "the mean of beta (Corollary 3.6)"]
    by_position: list[PositionShare]
    by_rank: list[RankShare]
    by_place: Annotated[list[RangeShare], "by the position of the token in the completion, from 1"]
    by_context: Annotated[
        list[RangeShare], "by context length: the tokens of the prompt and of the completion before the token"
    ]
    gamma_by_context: list[GammaRange]
    missing: Annotated[list[str], "what the records do not hold, one sentence each"]


class Profile(TypedDict):
    """How one draft agrees with one target, sampled in one way, on one or several tasks."""

    format: Literal["specbench-profile"]
    profile_version: Literal[1]
    target: str
    draft: str
    temperature: float
    top_k: int | None
    top_p: float | None
    processing: NotRequired[Annotated[str, "what else is done to logits, as keys; absent: nothing"]]
    simulated: Annotated[bool, "acceptance was drawn at a given alpha: nothing was measured of the models"]
    tasks: list[TaskProfile]
