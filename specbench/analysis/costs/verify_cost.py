"""v of a run: what verifying a full pass takes over a step of the target alone, as medians over its own passes."""

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.processes import of_processes
from specbench.records.schema import PassRecord, PromptRecord
from specbench.stats import Interval, draw_weights, interval

MOST_RESAMPLES = 200  # medians of all passes: each resample takes a cumulative sum over them


def verify_cost(
    prompts: Sequence[PromptRecord], gamma: int | None, resamples: int, seed: int, level: float | None = None
) -> Interval | None:
    """v: the median verification of a full pass over the median step of the target alone, with its interval.

    Every pass counts where `gamma` is None, and every pass over a tree (with parents): it drafts nodes, not `gamma`
    tokens, so that none of its counts makes it full. The interval resamples prompts
    (`MOST_RESAMPLES` times at most). None without a full pass.
    """
    of_passes, of_steps = full_passes(prompts, gamma), [prompt["baseline"]["steps_s"] for prompt in prompts]
    if not any(of_passes):
        return None
    value = _v(prompts, gamma)
    if len(prompts) < 2:
        return Interval(value, None, None)
    weights_SN = draw_weights(len(prompts), min(resamples, MOST_RESAMPLES), np.random.default_rng(seed))
    passes_S, steps_S = (medians(seconds, weights_SN) for seconds in (of_passes, of_steps))
    drawn = np.isfinite(passes_S)  # a resample may hold no prompt with a full pass
    runs = of_processes(prompts)
    of_runs = [_v(one, gamma) for one in runs] if len(runs) > 1 else []
    return interval(value, (passes_S / steps_S)[drawn], len(prompts), level, of_runs)


def _v(prompts: Sequence[PromptRecord], gamma: int | None) -> float:
    """The median of full passes over the median step."""
    verifying_s = [one for some in full_passes(prompts, gamma) for one in some]
    return median(verifying_s) / median(one for prompt in prompts for one in prompt["baseline"]["steps_s"])


def full_passes(prompts: Sequence[PromptRecord], gamma: int | None) -> list[list[float]]:
    """The seconds of verifying each full pass, prompt by prompt."""
    return [[one["verify_s"] for one in prompt["speculative"]["passes"] if _is_full(one, gamma)] for prompt in prompts]


def _is_full(one: PassRecord, gamma: int | None) -> bool:
    return gamma is None or one.get("parents") is not None or one["drafted"] == gamma


def experts_read(prompts: Sequence[PromptRecord], gamma: int | None) -> float | None:
    """The experts that the mean full pass reads over those that the mean step reads; None without experts."""
    of_steps = [count for prompt in prompts for count in prompt["baseline"].get("step_experts", ())]
    passes = [one for prompt in prompts for one in prompt["speculative"]["passes"] if _is_full(one, gamma)]
    of_passes = [sum(one["experts"]) for one in passes if "experts" in one]
    return fmean(of_passes) / fmean(of_steps) if of_passes and of_steps else None


def medians(seconds: Sequence[Sequence[float]], weights_SN: NDArray[np.int64]) -> NDArray[np.float64]:
    """The median of all `seconds` of N prompts in each of S resamples [S]; NaN for a resample without any."""
    values = np.array([one for some in seconds for one in some])
    owner = np.repeat(np.arange(len(seconds)), [len(some) for some in seconds])
    order = np.argsort(values)
    values, owner = values[order], owner[order]
    found = np.full(len(weights_SN), np.nan)
    for place, weights_N in enumerate(weights_SN):
        counts = np.cumsum(weights_N[owner])
        if counts[-1]:
            low, high = np.searchsorted(counts, [(counts[-1] - 1) // 2, counts[-1] // 2], side="right")
            found[place] = (values[low] + values[high]) / 2
    return found
