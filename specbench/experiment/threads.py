"""How many threads a run takes on a CPU when its config names no number: the physical cores that it may use.

Two hyperthreads of a core share its units and its way to memory, and threads beyond a container's quota are stopped for
the rest of each period. Torch counts neither, so its own number is lowered, and never raised.
"""

import contextlib
import os
from math import ceil
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path("/")
MOST = 64  # from which on more threads wait longer for each other than they save


class Threads(NamedTuple):
    """A number of threads and why it is no larger."""

    number: int
    why: str


def usable_threads(root: Path = ROOT, allowed: set[int] | None = None) -> Threads:
    """The threads that pay on the machine under `root`, for a process that is allowed these processors."""
    allowed = _allowed() if allowed is None else allowed
    cores = _cores(root / "sys/devices/system/cpu", allowed)
    found = [Threads(len(allowed), "processors that this process may use"), Threads(cores, "physical cores")]
    if (quota := cpu_quota(root)) is not None:
        found.append(Threads(max(1, ceil(quota)), f"a quota of {quota:g} processors (cgroup)"))
    return min([*found, Threads(MOST, "more do not pay")], key=lambda one: one.number)


def processors(threads: int, root: Path = ROOT, allowed: set[int] | None = None) -> list[int]:
    """Choose processors for so many threads among those this process may use: one per core before second siblings."""
    allowed = _allowed() if allowed is None else allowed
    cores = _siblings(root / "sys/devices/system/cpu", allowed)
    first = {core: number for number, core in sorted(cores.items(), reverse=True)}
    order = sorted(allowed, key=lambda number: (first[cores[number]] != number, number))
    return sorted(order[:threads])


class _Replaced(NamedTuple):
    """The threads that a config has asked for, and torch's number before."""

    wanted: int
    before: int


_replaced: _Replaced | None = None


def use_default_threads(wanted: int | None) -> None:
    """Set torch's threads to `wanted`; or lower torch's own number to `usable_threads`.

    A number that the user has set, by OMP_NUM_THREADS or in Python, is left as it is. One that an earlier config of
    this process asked for is not the user's, and ends with that config.
    """
    global _replaced
    if _replaced is not None and torch.get_num_threads() == _replaced.wanted:
        torch.set_num_threads(_replaced.before)
    _replaced = None
    if wanted is not None:
        _replaced = _Replaced(wanted, torch.get_num_threads())
        torch.set_num_threads(wanted)
    elif "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() >= len(_allowed()):
        torch.set_num_threads(min(torch.get_num_threads(), usable_threads().number))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Processors that this process's control groups allow it on average; None if they do not limit it.

    Version 2 has `cpu.max`, "QUOTA PERIOD" or "max PERIOD", and version 1 two files; a group is also limited by those
    above it. In a container its own group is the root of what it sees.
    """
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("" if not controllers else "cpu")
        if controllers and not top.exists():
            top = root / "sys/fs/cgroup" / controllers
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            found += [quota for quota in (_quota_2(folder), _quota_1(folder)) if quota is not None]
            if folder == top:
                break
    return min(found, default=None)


def _quota_2(folder: Path) -> float | None:
    return _ratio(*[*_text(folder / "cpu.max").split(), "", ""][:2])


def _quota_1(folder: Path) -> float | None:
    return _ratio(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    with contextlib.suppress(ValueError, ZeroDivisionError):
        if (ratio := float(quota) / float(period)) > 0:  # -1: no limit
            return ratio
    return None


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):  # Linux
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cores(cpus: Path, allowed: set[int]) -> int:
    """The physical cores among these processors."""
    return len({*_siblings(cpus, allowed).values()})


def _siblings(cpus: Path, allowed: set[int]) -> dict[int, str]:
    """By processor the name of its core; each is one if the system does not tell."""
    found = {number: _text(cpus / f"cpu{number}/topology/thread_siblings_list") for number in allowed}
    return {number: shared or f"core {number}" for number, shared in found.items()}


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return ""
