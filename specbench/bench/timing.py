"""Timing several functions that do the same, in turn, so that a machine that slows down slows all of them alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from specbench.stats import Interval, over_rows, ratio_of_ratios


@dataclass(frozen=True)
class Timing:
    """One decoder on one prompt: the median of its times, in seconds, and the tokens it gave."""

    seconds: float
    tokens: list[int]

    @property
    def per_token(self) -> float:
        return self.seconds / len(self.tokens)


K = TypeVar("K")  # the name of a way
Decoder = Callable[[int], tuple[float, list[int]]]  # prompt number -> seconds, tokens


def in_turn(decoders: dict[K, Decoder], prompts: int, repeats: int) -> dict[K, list[Timing]]:
    """Each decoder on each prompt, `repeats` times, after an untimed round; the order rotates."""
    names = list(decoders)
    for name in names:
        decoders[name](0)
    found: dict[K, list[Timing]] = {name: [] for name in names}
    for prompt in range(prompts):
        runs: dict[K, list[tuple[float, list[int]]]] = {name: [] for name in names}
        for repeat in range(repeats):
            first = (prompt + repeat) % len(names)
            for name in names[first:] + names[:first]:
                runs[name].append(decoders[name](prompt))
        for name in names:
            found[name].append(Timing(median(seconds for seconds, _ in runs[name]), runs[name][-1][1]))
    return found


def times_faster(theirs: Sequence[Timing], ours: Sequence[Timing]) -> Interval:
    """Their time per token over ours, with its interval over prompts."""
    columns = [(a.seconds, len(a.tokens), b.seconds, len(b.tokens)) for a, b in zip(theirs, ours, strict=True)]
    return over_rows(columns, ratio_of_ratios)


def peak_growth(call: Callable[[], Any]) -> int | None:
    """By how many bytes the process's memory grows at most while `call` runs; None if the system does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here on
        before = _memory_of("VmRSS")
        call()
        return _memory_of("VmHWM") - before
    except (OSError, StopIteration):
        return None


def _memory_of(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def medians(calls: dict[str, Callable[[], Any]], now: Callable[[], float], repeats: int) -> dict[str, float]:
    """The median seconds of each function, called in turn; `now` waits for the device."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 3):
        for name, call in calls.items():
            before = now()
            call()
            if repeat >= 3:  # the first rounds warm up
                times[name].append(now() - before)
    return {name: median(seconds) for name, seconds in times.items()}
