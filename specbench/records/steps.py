"""A run's explanation: the steps from gamma + 1 to the speedup (`analysis.explain.waterfall`)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from specbench.stats import Interval

StepName = Literal[
    "rejections", "rule", "shape", "ends", "positions", "drafting", "verification", "overhead", "rest", "start"
]


@dataclass(frozen=True)
class Step:
    """One step of the waterfall."""

    step: StepName
    factor: Annotated[Interval, "of the speedup so far"]
    speedup: Annotated[float, "after this step, if a pass cost what the steps so far say"]
    ms: Annotated[Interval, "milliseconds a token that it adds; negative where it gains"]
    alone: Annotated[float | None, "the speedup if only this loss were removed; null if it costs nothing"]


@dataclass(frozen=True)
class Explanation:
    """The factors of a run's speedup."""

    ideal: Annotated[float, "tokens per pass if every drafted token were accepted: gamma + 1"]
    steps: Annotated[list[Step], "their factors times the ideal, up to 'rest', are the measured speedup"]
    measured: Interval
    end_to_end: Interval
    levers: Annotated[list[StepName], "the steps that cost speed, the largest loss first"]
    missing: Annotated[list[str], "what the record does not hold, one sentence each"]
