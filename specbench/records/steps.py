"""A run's explanation: the steps from gamma + 1 to the speedup (`analysis.explain.waterfall`)."""

from typing import Annotated, Literal, TypedDict

from specbench.stats import IntervalRecord

StepName = Literal[
    "rejections", "rule", "shape", "ends", "positions", "drafting", "verification", "overhead", "rest", "start"
]


class StepRecord(TypedDict):
    """One step of the waterfall."""

    step: StepName
    factor: Annotated[IntervalRecord, "of the speedup so far"]
    speedup: Annotated[float, "after this step, if a pass cost what the steps so far say"]
    ms: Annotated[IntervalRecord, "milliseconds a token that it adds; negative where it gains"]
    alone: Annotated[float | None, "the speedup if only this loss were removed; null if it costs nothing"]


class Explanation(TypedDict):
    """The factors of a run's speedup."""

    ideal: Annotated[float, "tokens per pass if every drafted token were accepted: gamma + 1"]
    steps: Annotated[list[StepRecord], "their factors times the ideal, up to 'rest', are the measured speedup"]
    measured: IntervalRecord
    end_to_end: IntervalRecord
    levers: Annotated[list[StepName], "the steps that cost speed, the largest loss first"]
    missing: Annotated[list[str], "what the record does not hold, a sentence each"]
