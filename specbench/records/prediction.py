"""A predicted speedup, the costs that it is made from, and the gamma that was chosen by it."""

from typing import Annotated, NotRequired, TypedDict

from specbench.records.units import AcceptanceByRank
from specbench.stats import IntervalRecord


class CostRecord(TypedDict):
    """The costs of passes, in target steps."""

    c: float
    verify_cost: float
    overhead: float
    passes: Annotated[int, "how many were timed"]
    first: Annotated[float, "cost of the first pass of a completion"]


class PredictionRow(TypedDict):
    """One candidate at one gamma, and the quantities that its speedup is computed from."""

    draft: str
    gamma: Annotated[int, "of a tree: its levels"]
    alpha: IntervalRecord
    cost: CostRecord
    tree: NotRequired[Annotated[str | None, "the tree that is drafted; null or absent for chains"]]
    nodes: NotRequired[Annotated[int | None, "of the tree, including the root"]]
    acceptance: NotRequired[
        Annotated[AcceptanceByRank | None, "by rank of the child: from which the tree's shape was computed"]
    ]
    tokens_per_pass: Annotated[float, "counted along the completions"]
    prediction: Annotated[str, "the source of `predicted` and `calibrated`"]
    tokens_per_pass_iid: Annotated[float, "by Eq. 1, or by position"]
    drafted_per_pass: float
    steps_per_pass: Annotated[float, "mean cost of a pass, in target steps"]
    predicted: Annotated[float, "speedup by Theorem 3.8"]
    calibrated: Annotated[float, "speedup with the cost of the passes in place of 1"]
    estimated: Annotated[IntervalRecord, "speedup from the passes that the completions need"]


class GammaRecord(TypedDict):
    """The choice that `gamma=` was resolved to."""

    requested: int | str
    gamma: int | None
    most: NotRequired[int]
    alpha: NotRequired[float]
    prices: NotRequired[dict[str, float]]
    probe: NotRequired[list[PredictionRow]]
    acceptance: NotRequired[
        Annotated[AcceptanceByRank, "by rank of the child: from which the tree's shape was computed"]
    ]
    size: NotRequired[Annotated[int, "chosen for the tree, including the root"]]
    verify: NotRequired[Annotated[dict[str, float], "v(n): cost of verifying n tokens, in target steps"]]
    level: NotRequired[Annotated[float, "cost of drafting a level of the tree, in target steps"]]
