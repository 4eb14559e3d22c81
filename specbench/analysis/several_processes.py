"""Prompts that several processes measured (`runs`): their times as means over processes, and each process's own.

Seeds are the same in all processes, so the tokens and passes of a prompt are equal at every temperature, and only times
differ: by the layout of memory, caches and clocks. A prompt of a record therefore has its tokens once, the mean over
processes in place of each time, and what each process measured in `runs`. Code that reads prompts sees a run that was
measured more exactly. Energy is also a mean; memory is the maximum, and the machine's states are all there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from specbench.errors import MachineError
from specbench.records.decoded import LoadRecord, Pass, ProcessTimes, TimesRecord, Trace
from specbench.records.prompt_sums import UsedRecord
from specbench.records.run_record import DECODING_MODES, PromptRecord


def merged(runs: Sequence[Sequence[PromptRecord]]) -> list[PromptRecord]:
    """The prompts of several processes as one list, each with the mean of its times and with `runs`.

    Raises MachineError if a prompt's completions or passes are not the same in all processes.
    """
    return [_merged(prompts) for prompts in zip(*runs, strict=True)]


def of_processes(prompts: Sequence[PromptRecord]) -> list[Sequence[PromptRecord]]:
    """The prompts as each process measured them; for a run in one process its own."""
    count = len(prompts[0].get("runs", ()))
    if not count:
        return [prompts]
    return [[_with_times(prompt, prompt["runs"][place]) for prompt in prompts] for place in range(count)]


def _merged(prompts: Sequence[PromptRecord]) -> PromptRecord:
    first = prompts[0]
    for place, other in enumerate(prompts[1:], 2):
        if _text_of(first) != _text_of(other):
            raise MachineError(
                f"prompt {first['index'] + 1}: process {place} decoded it otherwise than process 1, although both have "
                "one seed: this machine's arithmetic differs from process to process; use numerics=invariant, or runs=1"
            )
    times = [_times_of(prompt) for prompt in prompts]
    found: PromptRecord = {**_with_times(first, _mean(times)), "runs": times}
    if states := [state for prompt in prompts for state in prompt.get("states", [])]:
        found["states"] = states
    if all("used" in prompt for prompt in prompts):
        found["used"] = {mode: _used([prompt["used"][mode] for prompt in prompts]) for mode in DECODING_MODES}
    return found


def _used(processes: Sequence[UsedRecord]) -> UsedRecord:
    """The mean energy and the greatest peak of several processes, if each knows it."""
    used: UsedRecord = {}
    joules = [one["joules"] for one in processes if "joules" in one]
    peaks = [one["peak_bytes"] for one in processes if "peak_bytes" in one]
    if len(joules) == len(processes):
        used["joules"] = _mean_of(joules)
    if len(peaks) == len(processes):
        used["peak_bytes"] = max(peaks)
    return used


def _text_of(prompt: PromptRecord) -> list[object]:
    """All of a prompt's traces but the times."""
    return [
        [_without_times(prompt[mode]), [_without_times(one) for one in prompt[mode].passes]] for mode in DECODING_MODES
    ]


def _without_times(one: Trace | Pass) -> dict[str, Any]:
    return {key: value for key, value in vars(one).items() if not key.endswith("_s") and key != "passes"}


def _times_of(prompt: PromptRecord) -> ProcessTimes:
    times: ProcessTimes = {
        "baseline": _times_of_trace(prompt["baseline"]),
        "speculative": _times_of_trace(prompt["speculative"]),
        "load": prompt.get("load"),
    }
    if "states" in prompt:
        times["states"] = prompt["states"]
    return times


def _times_of_trace(trace: Trace) -> TimesRecord:
    return {
        "start_s": trace.start_s,
        "decode_s": trace.decode_s,
        "draft_start_s": trace.draft_start_s,
        "steps_s": trace.steps_s,
        "passes_s": [[one.draft_s, one.verify_s, one.accept_s] for one in trace.passes],
    }


def _with_times(prompt: PromptRecord, times: ProcessTimes) -> PromptRecord:
    traces = {mode: _trace_with(prompt[mode], times[mode]) for mode in DECODING_MODES}
    states = {"states": times.get("states", [])} if "states" in prompt else {}
    return cast(PromptRecord, {**prompt, **traces, **states, "load": times["load"]})


def _trace_with(trace: Trace, times: TimesRecord) -> Trace:
    passes = [
        replace(one, draft_s=seconds[0], verify_s=seconds[1], accept_s=seconds[2])
        for one, seconds in zip(trace.passes, times["passes_s"], strict=True)
    ]
    return replace(
        trace, start_s=times["start_s"], decode_s=times["decode_s"], draft_start_s=times["draft_start_s"],
        steps_s=times["steps_s"], passes=passes,
    )  # fmt: skip


def _mean(times: Sequence[ProcessTimes]) -> ProcessTimes:
    loads = [one["load"] for one in times]
    known = [load for load in loads if load is not None]
    load: LoadRecord | None = None
    if len(known) == len(loads):
        load = {
            "ran_s": _mean_of([one["ran_s"] for one in known]),
            "waited_s": _mean_of([o["waited_s"] for o in known]),
        }
    return {
        "baseline": _mean_of_traces([one["baseline"] for one in times]),
        "speculative": _mean_of_traces([one["speculative"] for one in times]),
        "load": load,
    }


def _mean_of_traces(traces: Sequence[TimesRecord]) -> TimesRecord:
    return {
        "start_s": _mean_of([one["start_s"] for one in traces]),
        "decode_s": _mean_of([one["decode_s"] for one in traces]),
        "draft_start_s": _mean_of([one["draft_start_s"] for one in traces]),
        "steps_s": _mean_of([one["steps_s"] for one in traces]),
        "passes_s": _mean_of([one["passes_s"] for one in traces]),
    }


def _mean_of(values: Sequence[Any]) -> Any:
    """The mean of numbers, or of lists element by element."""
    return np.mean(values, axis=0).tolist()
