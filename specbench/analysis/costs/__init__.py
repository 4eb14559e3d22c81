"""Costs: c, v and the time of passes; here the cost of a run's passes, in time and in operations, over all passes.

In a batch the times of a row's steps and passes are walltimes, which it shares with as many rows as `rows` says; its
`decode_s` is its share. Plain numbers only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.records.decoded import Pass, Trace
from specbench.records.numbers import Throughput
from specbench.records.run_record import DECODING_MODES, DecodingMode, PromptRecord


def seconds_of(trace: Trace) -> list[float]:
    """Seconds of each step or pass."""
    return trace.steps_s or [one.draft_s + one.verify_s + one.accept_s for one in trace.passes]


def rows_of(trace: Trace) -> list[int]:
    """How many rows each step or pass had: 1 without a batch."""
    return trace.rows or [1] * len(seconds_of(trace))


def throughput(prompts: Sequence[PromptRecord], batch: int, wrong: bool) -> Throughput:
    """Throughput and latency in both modes; None for speculative decoding if its completions are `wrong`."""
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
    """Mean rows, tokens per second, seconds per token of a row."""
    traces = [prompt[mode] for prompt in prompts]
    tokens = sum(len(trace.tokens) for trace in traces)
    rows = [number for trace in traces for number in rows_of(trace)]
    waited_s = sum(sum(seconds_of(trace)) for trace in traces)
    return (
        len(rows) / sum(1 / number for number in rows),
        tokens / sum(t.decode_s for t in traces),
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
    steps_s = [s / rows for trace in alone for s, rows in zip(trace.steps_s, rows_of(trace), strict=True)]
    passes = [(one, rows) for trace in ours for one, rows in zip(trace.passes, rows_of(trace), strict=True)]
    step_s = sum(steps_s) / len(steps_s)
    drafting = sum(one.draft_s / rows for one, rows in passes) / len(passes)
    checking = sum(one.verify_s / rows for one, rows in passes) / len(passes)
    accepting = sum(one.accept_s / rows for one, rows in passes) / len(passes)
    return PassCosts(drafting / step_s, checking / step_s, accepting / step_s)


def operations(passes: Sequence[Pass], c_hat: float) -> tuple[float, int]:
    """Arithmetic operations of these passes in target steps, and the tokens that they emitted (Definition 3.10).

    A pass runs M_p on its drafted tokens and one more, and M_q on each drafted token.
    """
    spent = sum(a_pass.drafted * (1 + c_hat) + 1 for a_pass in passes)
    return spent, sum(a_pass.emitted for a_pass in passes)
