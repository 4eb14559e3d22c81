"""A predicted speedup, the costs that it is made from, and the gamma that was chosen by it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict

from specbench.recorded import OMITTED
from specbench.records.units import AcceptanceByRank
from specbench.stats import Interval


@dataclass(frozen=True)
class Cost:
    """Costs in target steps of passes that draft all gamma tokens and do not begin a completion."""

    c: Annotated[float, "of drafting one token"]
    verify_cost: Annotated[float, "v: of verifying gamma + 1 positions"]
    overhead: Annotated[float, "of accepting"]
    passes: Annotated[int, "how many were timed"]
    first: Annotated[float, "cost of the first pass of a completion"]

    def of_pass(self, gamma: float) -> float:
        """The cost of a pass that drafts so many tokens."""
        return gamma * self.c + self.verify_cost + self.overhead


class PredictionRow(TypedDict):
    """One candidate at one gamma, and the quantities that its speedup is computed from."""

    draft: str
    gamma: Annotated[int, "of a tree: its levels"]
    alpha: Interval
    cost: Cost
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
    estimated: Annotated[Interval, "speedup from the passes that the completions need"]


@dataclass(frozen=True)
class DraftingPlan:
    """The choice that `gamma=` of a config was resolved to: a resumed run uses the same, and a reader sees why."""

    requested: Annotated[
        int | str, "as shown in tables: the number or policy of the config, and when the draft ends a proposal earlier"
    ]
    gamma: Annotated[int | None, "the constant number; null where it changes from pass to pass"]
    most: Annotated[
        int | None,
        "maximum number of tokens of a pass if the draft ends proposals by its confidence; or of levels of its trees",
        OMITTED,
    ] = None
    alpha: Annotated[float | None, "of an adaptive policy: the initial estimate", OMITTED] = None
    prices: Annotated[
        Mapping[int, float] | None, "of an adaptive policy: the initial cost of a pass, by gamma", OMITTED
    ] = None
    probe: Annotated[list[PredictionRow] | None, "a row for each gamma that was tried, best first", OMITTED] = None
    acceptance: Annotated[
        AcceptanceByRank | None, "by rank of the child: from which the tree's shape was computed", OMITTED
    ] = None
    size: Annotated[int | None, "chosen for the tree, including the root", OMITTED] = None
    level: Annotated[float | None, "cost of drafting a level of the tree, in target steps", OMITTED] = None
    verify: Annotated[Mapping[int, float] | None, "v(n): cost of verifying n tokens, in target steps", OMITTED] = None
