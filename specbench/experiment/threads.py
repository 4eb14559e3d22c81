"""How many threads a run takes on a CPU when its config names no number: the physical cores that it may use.

Two hyperthreads of a core share its units and its way to memory, and threads beyond a container's quota are stopped for
the rest of each period. Each thread has an equal share of a step, so that all wait for a slow core. Weights lie in the
memory of the NUMA node whose core has loaded them, and cores of other nodes read them through it. Torch's own number
considers none of these but, in some builds, hyperthreads; so it is lowered, and never raised.
"""

import contextlib
import os
import subprocess
from math import ceil
from pathlib import Path
from typing import NamedTuple

import torch

from specbench.alone import when_done
from specbench.kernels import IS_APPLE

ROOT = Path("/")
PATIENCE_S = 5
ALIKE = 0.75  # of the fastest core's capacity: cores of one kind differ by their highest clocks
MOST = 64  # from which on more threads wait longer for each other than they save


class Threads(NamedTuple):
    """A number of threads and why it is no larger."""

    number: int
    why: str


def usable_threads(root: Path = ROOT, allowed: set[int] | None = None) -> Threads:
    """The threads that pay on the machine under `root`, for a process that is allowed these processors."""
    allowed = _allowed() if allowed is None else allowed
    cpus, fast = root / "sys/devices/system/cpu", _fast(root, allowed)
    found = [
        Threads(len(allowed), "processors that this process may use"),
        Threads(_cores(cpus, allowed), "physical cores"),
        Threads(_cores(cpus, fast), "physical cores of the fast kind"),
    ]
    if len(nodes := _nodes(root, fast)) > 1:
        node, held = nodes[0]
        binds = f"numactl --cpunodebind={node} --membind={node} binds to it"
        found.append(Threads(_cores(cpus, held), f"physical cores of one of {len(nodes)} NUMA nodes; {binds}"))
    if IS_APPLE and root == ROOT:
        found += _of_macos()
    if (quota := cpu_quota(root)) is not None:
        found.append(Threads(max(1, ceil(quota)), f"a quota of {quota:g} processors (cgroup)"))
    return min([*found, Threads(MOST, "more do not pay")], key=lambda one: one.number)


def processors(threads: int, root: Path = ROOT, allowed: set[int] | None = None) -> list[int]:
    """Choose processors for so many threads among those this process may use: one per core before second siblings.

    Of several kinds of core the fast ones come first, and of several NUMA nodes the one with the most.
    """
    allowed = _allowed() if allowed is None else allowed
    cores, fast = _siblings(root / "sys/devices/system/cpu", allowed), _fast(root, allowed)
    first = {core: number for number, core in sorted(cores.items(), reverse=True)}
    place = {number: at for at, (_, held) in enumerate(_nodes(root, fast)) for number in held}

    def rank(number: int) -> tuple[bool, bool, int, int]:
        return first[cores[number]] != number, number not in fast, place.get(number, 0), number

    return sorted(sorted(allowed, key=rank)[:threads])


def physical_cores() -> int:
    """The physical cores that this process may use."""
    return _cores(ROOT / "sys/devices/system/cpu", _allowed())


class _Replaced(NamedTuple):
    """The threads that a config has asked for, and torch's number before."""

    wanted: int
    before: int


_replaced: _Replaced | None = None


def use_default_threads(wanted: int | None) -> None:
    """Set torch's threads to `wanted`; or lower torch's own number to `usable_threads`.

    A number that the user has set, by OMP_NUM_THREADS or in Python, is left as it is. One that an earlier config of
    this process asked for is not the user's, and ends with that config, or with its measurement.
    """
    global _replaced
    restore_threads()
    if wanted is not None:
        _replaced = _Replaced(wanted, torch.get_num_threads())
        torch.set_num_threads(wanted)
    elif (default := default_threads()).number != torch.get_num_threads():
        torch.set_num_threads(default.number)


def default_threads() -> Threads:
    """The threads of a run here whose config names none."""
    own, usable = torch.get_num_threads(), usable_threads()
    if "OMP_NUM_THREADS" in os.environ:
        return Threads(own, "OMP_NUM_THREADS")
    # With MKL torch begins with all cores, else with all processors.
    is_torchs = own >= len(_allowed()) or own == physical_cores()
    if own == usable.number or (own > usable.number and is_torchs):
        return usable
    return Threads(own, "torch's own number")


def restore_threads() -> None:
    """Give torch the number back that it had before a config asked for another."""
    global _replaced
    if _replaced is not None and torch.get_num_threads() == _replaced.wanted:
        torch.set_num_threads(_replaced.before)
    _replaced = None


when_done(restore_threads)


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


def _fast(root: Path, allowed: set[int]) -> set[int]:
    """The fastest kind among these processors; all if the system does not tell kinds apart.

    Each Arm core has a capacity; Intel's fast cores are a device.
    """
    cpus = root / "sys/devices/system/cpu"
    capacity = {number: _text(cpus / f"cpu{number}/cpu_capacity") for number in allowed}
    if allowed and all(one.isdigit() for one in capacity.values()):
        least = ALIKE * max(map(int, capacity.values()))
        return {number for number, one in capacity.items() if int(one) >= least}
    return _listed(_text(root / "sys/devices/cpu_core/cpus")) & allowed or allowed


def _nodes(root: Path, allowed: set[int]) -> list[tuple[int, set[int]]]:
    """NUMA nodes that have some of these processors, by number, the one with the most first."""
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    found = {int(folder.name[4:]): _listed(_text(folder / "cpulist")) & allowed for folder in folders}
    return sorted(((number, held) for number, held in found.items() if held), key=lambda one: (-len(one[1]), one[0]))


def _of_macos() -> list[Threads]:
    """Cores as macOS counts them: all, and the fast ones if it has two kinds."""
    kinds = {"hw.physicalcpu": "physical cores", "hw.perflevel0.physicalcpu": "physical cores of the fast kind"}
    found = []
    for name, why in kinds.items():
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            asked = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=PATIENCE_S)
            if (number := int(asked.stdout)) > 0:
                found.append(Threads(number, why))
    return found


def _listed(text: str) -> set[int]:
    """The numbers of a list of ranges, as Linux writes them: 0-3,8,10-11."""
    found = set[int]()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        with contextlib.suppress(ValueError):
            found.update(range(int(first), int(last or first) + 1))
    return found


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
