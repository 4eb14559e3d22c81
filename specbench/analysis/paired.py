"""Two runs over the prompts they share: paired differences with intervals.

The effects of a prompt (length, difficulty) are in both runs and cancel, so the interval of a difference is narrower
than two separate intervals suggest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench.analysis.sample_size import detectable
from specbench.records.schema import DecodingMode, PromptRecord
from specbench.stats import Interval, IntervalRecord, bootstrap, ratio_of_ratios

Pairs = list[tuple[PromptRecord, PromptRecord]]


@dataclass(frozen=True)
class Paired:
    """Run A against run B. A ratio above 1 is in favour of A."""

    prompts: int
    faster: Interval  # time per token of B over that of A, as decoded
    speedup: Interval  # speedup of A over that of B, each against its own baseline, which cancels a slower hour
    alpha: Interval  # alpha of A less that of B
    tokens_per_pass: Interval  # of A over that of B

    def to_json(self) -> "PairedRecord":
        return {
            "prompts": self.prompts,
            "faster": _shown(self.faster),
            "speedup": _shown(self.speedup),
            "alpha": _shown(self.alpha),
            "tokens_per_pass": _shown(self.tokens_per_pass),
        }


class ComparedRecord(IntervalRecord):
    """A difference or ratio, and the smallest `detectable` difference from none, nine times in ten."""

    detectable: float | None


class PairedRecord(TypedDict):
    """`Paired` as JSON."""

    prompts: int
    faster: ComparedRecord
    speedup: ComparedRecord
    alpha: ComparedRecord
    tokens_per_pass: ComparedRecord


def _shown(one: Interval) -> ComparedRecord:
    return {**one.to_json(), "detectable": detectable(one)}


def shared(a: Sequence[PromptRecord], b: Sequence[PromptRecord]) -> Pairs:
    """Prompts that are in both runs, with the same index and prompt."""
    there = {(prompt["index"], prompt["prompt"]): prompt for prompt in b}
    return [(prompt, there[key]) for prompt in a if (key := (prompt["index"], prompt["prompt"])) in there]


def compare(pairs: Pairs, resamples: int, seed: int) -> Paired:
    """Totals over the shared prompts, with intervals that resample prompts."""

    def interval(columns: ArrayLike, statistic: Any) -> Interval:
        return bootstrap(columns, statistic, resamples, seed)

    times = [[*_time(b, "speculative"), *_time(a, "speculative")] for a, b in pairs]
    both = [
        [*_time(a, "baseline"), *_time(a, "speculative"), *_time(b, "baseline"), *_time(b, "speculative")]
        for a, b in pairs
    ]
    betas = [[sum(a["beta"]), len(a["beta"]), sum(b["beta"]), len(b["beta"])] for a, b in pairs]
    passes = [[*_passes(a), *_passes(b)] for a, b in pairs]
    return Paired(
        len(pairs),
        faster=interval(times, ratio_of_ratios),
        speedup=interval(both, lambda t: ratio_of_ratios(t[..., :4]) / ratio_of_ratios(t[..., 4:])),
        alpha=interval(betas, difference_of_ratios),
        tokens_per_pass=interval(passes, ratio_of_ratios),
    )


def difference_of_ratios(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Totals [..., (a, b, c, d)] to a / b - c / d."""
    return totals[..., 0] / totals[..., 1] - totals[..., 2] / totals[..., 3]


def _time(prompt: PromptRecord, way: DecodingMode) -> tuple[float, int]:
    return prompt[way]["decode_s"], len(prompt[way]["tokens"])


def _passes(prompt: PromptRecord) -> tuple[int, int]:
    return len(prompt["speculative"]["tokens"]), len(prompt["speculative"]["passes"])
