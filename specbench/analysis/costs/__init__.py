"""Costs: c, v and the time of passes; here the cost of a run's passes, in time and in operations, over all passes.

A pass that drafted less than gamma is cheaper than a full pass, so c and v, which are of full passes, do not add up to
the cost of a draft that often proposes nothing.

In a batch the times of a row's steps and passes are walltimes, which it shares with as many rows as `rows` says; its
`decode_s` is its share. Plain numbers only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.processes import of_processes
from specbench.records.schema import DECODING_MODES, DecodingMode, PassRecord, PromptRecord, Throughput, TraceRecord
from specbench.stats import Interval, draw_weights, interval


def seconds_of(trace: TraceRecord) -> list[float]:
    """Seconds of each step or pass."""
    return trace.get("steps_s") or [one["draft_s"] + one["verify_s"] + one["accept_s"] for one in trace["passes"]]


def rows_of(trace: TraceRecord) -> list[int]:
    """How many rows each step or pass had: 1 without a batch."""
    return trace.get("rows") or [1] * len(seconds_of(trace))


def throughput(prompts: Sequence[PromptRecord], batch: int, wrong: bool) -> Throughput:
    """Of both modes of decoding; none of speculative decoding where its completions are `wrong`."""
    alone, ours = (_rates(prompts, mode) for mode in DECODING_MODES)
    return {
        "batch": batch,
        "occupancy": ours[0],
        "occupancy_baseline": alone[0],
        "tokens_per_second": None if wrong else ours[1],
        "tokens_per_second_baseline": alone[1],
        "latency_s": None if wrong else ours[2],
        "latency_s_baseline": alone[2],
    }


def _rates(prompts: Sequence[PromptRecord], mode: DecodingMode) -> tuple[float, float, float]:
    """Mean rows, tokens a second, seconds a token of a row."""
    traces = [prompt[mode] for prompt in prompts]
    tokens = sum(len(trace["tokens"]) for trace in traces)
    rows = [number for trace in traces for number in rows_of(trace)]
    waited_s = sum(sum(seconds_of(trace)) for trace in traces)
    return (
        len(rows) / sum(1 / number for number in rows),
        tokens / sum(t["decode_s"] for t in traces),
        waited_s / tokens,
    )


@dataclass(frozen=True)
class PassCosts:
    """Mean times of a pass, in mean target steps.

    Tokens per pass over the sum of the three is the measured speedup.
    """

    drafting: float
    checking: float
    accepting: float

    @property
    def total(self) -> float:
        return self.drafting + self.checking + self.accepting


def pass_costs(prompts: Sequence[PromptRecord]) -> PassCosts:
    """The mean pass over the mean step of the baseline, over all prompts of a run; in a batch of a row's share."""
    alone, ours = ([prompt[mode] for prompt in prompts] for mode in DECODING_MODES)
    steps_s = [s / rows for trace in alone for s, rows in zip(trace["steps_s"], rows_of(trace), strict=True)]
    passes = [(one, rows) for trace in ours for one, rows in zip(trace["passes"], rows_of(trace), strict=True)]
    step_s = sum(steps_s) / len(steps_s)
    drafting = sum(one["draft_s"] / rows for one, rows in passes) / len(passes)
    checking = sum(one["verify_s"] / rows for one, rows in passes) / len(passes)
    accepting = sum(one["accept_s"] / rows for one, rows in passes) / len(passes)
    return PassCosts(drafting / step_s, checking / step_s, accepting / step_s)


def operations(passes: Sequence[PassRecord], c_hat: float) -> tuple[float, int]:
    """Arithmetic operations of these passes in target steps, and the tokens that they emitted (Definition 3.10).

    A pass runs M_p on its drafted tokens and one more, and M_q on each drafted token.
    """
    spent = sum(a_pass["drafted"] * (1 + c_hat) + 1 for a_pass in passes)
    return spent, sum(a_pass["emitted"] for a_pass in passes)


# v of a run: what verifying a full pass takes over a step of the target alone, as medians over its own passes.


MOST_RESAMPLES = 200  # medians of all passes: each resample takes a cumulative sum over them


def verify_cost(
    prompts: Sequence[PromptRecord], gamma: int | None, resamples: int, seed: int, level: float | None = None
) -> Interval | None:
    """v: the median verification of a full pass over the median step of the target alone, with its interval.

    Every pass counts where `gamma` is None, and every pass over a tree (with parents): it drafts nodes, not `gamma`
    tokens, so that none of its counts makes it full. The interval resamples prompts
    (`MOST_RESAMPLES` times at most). None without a full pass.
    """
    return _over_steps(prompts, partial(full_passes, gamma=gamma), resamples, seed, level)


def draft_cost(prompts: Sequence[PromptRecord], resamples: int, seed: int) -> Interval | None:
    """c of chains: the median seconds of a drafted token over the median step, with its interval over prompts."""
    return _over_steps(prompts, drafted_tokens, resamples, seed)


Seconds = Callable[[Sequence[PromptRecord]], list[list[float]]]  # prompt by prompt


def _over_steps(
    prompts: Sequence[PromptRecord], seconds: Seconds, resamples: int, seed: int, level: float | None = None
) -> Interval | None:
    """The median of some `seconds` over the median step, with its interval; None where there are no such seconds."""
    of_passes, of_steps = seconds(prompts), [prompt["baseline"]["steps_s"] for prompt in prompts]
    if not any(of_passes):
        return None
    value = _ratio(prompts, seconds)
    if len(prompts) < 2:
        return Interval(value, None, None)
    weights_SN = draw_weights(len(prompts), min(resamples, MOST_RESAMPLES), np.random.default_rng(seed))
    passes_S, steps_S = (medians(seconds, weights_SN) for seconds in (of_passes, of_steps))
    drawn = np.isfinite(passes_S)  # a resample may hold no prompt with a full pass
    runs = of_processes(prompts)
    of_runs = [_ratio(one, seconds) for one in runs] if len(runs) > 1 else []
    return interval(value, (passes_S / steps_S)[drawn], len(prompts), level, of_runs)


def _ratio(prompts: Sequence[PromptRecord], seconds: Seconds) -> float:
    """The median of `seconds` over the median step."""
    found = [one for some in seconds(prompts) for one in some]
    return median(found) / median(one for prompt in prompts for one in prompt["baseline"]["steps_s"])


def drafted_tokens(prompts: Sequence[PromptRecord]) -> list[list[float]]:
    """The seconds of a drafted token of each pass with a proposal, prompt by prompt."""
    return [
        [one["draft_s"] / one["drafted"] for one in prompt["speculative"]["passes"] if one["drafted"]]
        for prompt in prompts
    ]


def full_passes(prompts: Sequence[PromptRecord], gamma: int | None) -> list[list[float]]:
    """The seconds of verifying each full pass, prompt by prompt."""
    return [[one["verify_s"] for one in prompt["speculative"]["passes"] if _is_full(one, gamma)] for prompt in prompts]


def _is_full(one: PassRecord, gamma: int | None) -> bool:
    return gamma is None or one.get("parents") is not None or one["drafted"] == gamma


def experts_read(prompts: Sequence[PromptRecord], gamma: int | None) -> float | None:
    """Mean experts read by a full pass, divided by the mean of a step; None without experts."""
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
