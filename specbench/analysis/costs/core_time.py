"""How long this process waited for a core, if the system reports it.

Linux counts for each thread the time on a core and the time that it was ready to run and had none
(/proc/PID/task/TID/schedstat, in nanoseconds). Elsewhere nothing is known. Reading takes about 0.1 ms per thread, so it
is done once before and once after a prompt.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from specbench.analysis.costs.disturbance import MOST_WAITED, of_steps
from specbench.records.timed_rounds import Round

T = TypeVar("T")
TRIES = 3  # of a timed piece of work that waited for a core
TASKS = Path("/proc/self/task")
NANOSECONDS = 1e-9


class CoreTime(NamedTuple):
    """Seconds of one thread, or of all: on a core, and ready to run without a core."""

    ran_s: float
    waited_s: float

    @property
    def waited(self) -> float:
        """Share of the time for which it waited for a core."""
        return self.waited_s / (self.waited_s + self.ran_s)


Threads = dict[str, CoreTime]


def core_times(tasks: Path = TASKS) -> Threads:
    """By thread, since it began; empty if the system does not tell."""
    found = {}
    for task in tasks.iterdir() if tasks.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):  # no such counts; or a thread that ended just now
            ran, waited, _ = (task / "schedstat").read_text().split()
            found[task.name] = CoreTime(int(ran) * NANOSECONDS, int(waited) * NANOSECONDS)
    return found


def between(before: Threads, after: Threads) -> CoreTime | None:
    """The time of all threads that live at the end, from `before` to `after`; None if either is unknown."""
    if not before or not after:
        return None
    spent = [
        (now.ran_s - then.ran_s, now.waited_s - then.waited_s)
        for thread, now in after.items()
        for then in [before.get(thread, CoreTime(0.0, 0.0))]
    ]
    ran_s, waited_s = (sum(column) for column in zip(*spent, strict=True))
    return CoreTime(ran_s, waited_s) if ran_s > 0 else None  # a kernel without these counts says 0


def waited_share(before: Threads) -> float | None:
    """Share of the time since `before` for which this process waited for a core; None if it is not known."""
    load = between(before, core_times())
    return None if load is None else load.waited


def least_disturbed(work: Callable[[], T], tries: int = TRIES) -> tuple[T, float | None]:
    """The result of `work`, which times something, and the share of its time for which it waited for a core.

    It is repeated while it waited for more than `MOST_WAITED` of its time, up to `tries` times in all; the result of
    the least disturbed time is returned.
    """
    found = list[tuple[T, float]]()
    for _ in range(tries):
        before = core_times()
        result = work()
        waited = waited_share(before)
        if waited is None or waited <= MOST_WAITED:
            return result, waited
        found.append((result, waited))
    return min(found, key=lambda one: one[1])


def undisturbed(work: Callable[[], Round]) -> Round:
    """A timed round, repeated while the process waits for a core (`least_disturbed`)."""
    found, waited = least_disturbed(work)
    return replace(found, waited=waited)


def disturbed_by(rounds: Sequence[Round], waited: float | None = None) -> str | None:
    """The signs, in words, that other work disturbed the timed rounds; None without a sign.

    `waited` is the share of the whole measurement for which the process waited for a core; None: it is taken from the
    rounds.
    """
    known = [one.waited for one in rounds if one.waited is not None]
    if waited is None and known:
        waited = sum(known) / len(known)
    return of_steps(waited, [one.steps_s for one in rounds]).all_signs
