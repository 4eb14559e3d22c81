"""The memory peak and the energy of a decoding, read once before and once after it.

Energy on a CPU is its packages' energy (Intel's and AMD's RAPL counters, as Linux's powercap reports them), with all
that ran on them; on most systems only root can read it. On a GPU it is only the GPU's (`experiment.machine`). Memory on
a CPU is the process's peak resident memory (VmHWM), on CUDA the peak of torch's allocator.
"""

import contextlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from specbench.experiment.gpu_state import Gpu
from specbench.experiment.machine import machine_of
from specbench.records.prompt_sums import UsedRecord

T = TypeVar("T")
ROOT = Path("/")
RESET_PEAK = "5"  # to /proc/self/clear_refs (proc(5))


class Zone(NamedTuple):
    """A package's counter of microjoules, which begins again at 0 after `most`."""

    counter: Path
    most: int


class Meter:
    """Measures decodings on `device`; `root` is where /proc and /sys lie."""

    def __init__(self, device: torch.device, gpu: Gpu | None, root: Path = ROOT) -> None:
        self._device, self._gpu = device, gpu
        self._zones = [] if device.type == "cuda" else zones(root / "sys/class/powercap")
        self._status, self._clear = root / "proc/self/status", root / "proc/self/clear_refs"
        self.no_energy = self._why_no_energy(root)

    def measured(self, work: Callable[[], T]) -> tuple[T, UsedRecord]:
        """The result of `work`, and what it used."""
        self._reset_peak()
        before = self._counters()
        result = work()
        after = self._counters()
        used: UsedRecord = {}
        if before is not None and after is not None:
            used["joules"] = spent(before, after, [zone.most for zone in self._zones])
        if (peak := self._peak()) is not None:
            used["peak_bytes"] = peak
        return result, used

    def _counters(self) -> list[float] | None:
        """Joules of the GPU, or microjoules of each package; None if one of them cannot be read."""
        if self._device.type == "cuda":
            joules = None if self._gpu is None else self._gpu.joules()
            return None if joules is None else [joules]
        try:
            return [float(zone.counter.read_text()) for zone in self._zones] or None
        except (OSError, ValueError):
            return None

    def _why_no_energy(self, root: Path) -> str | None:
        """Why no energy is measured; None if it is."""
        if self._device.type == "cuda":
            return (
                "no GPU can be asked: neither NVML nor nvidia-smi is there"
                if self._gpu is None
                else self._gpu.no_energy
            )
        if not self._zones:
            return f"the system has no counter of energy (/{(root / 'sys/class/powercap').relative_to(root)})"
        if self._counters() is None:
            return f"{self._zones[0].counter}: may not be read; on most systems only root may"
        return None

    def _reset_peak(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with contextlib.suppress(OSError):  # if it may not be reset, it is the most since the process began
            self._clear.write_text(RESET_PEAK)

    def _peak(self) -> int | None:
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        with contextlib.suppress(OSError):
            for line in self._status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return 1024 * int(line.split()[1])
        return None


@cache
def meter_of(device: torch.device) -> Meter:
    """The meter of this machine for `device`."""
    return Meter(device, machine_of(device).gpu)


def zones(powercap: Path) -> list[Zone]:
    """The counters of whole packages; parts of them (core, dram) and what holds several (psys) would count twice."""
    found = []
    for folder in sorted(powercap.glob("*-rapl*:*")):
        with contextlib.suppress(OSError, ValueError):
            if (folder / "name").read_text().startswith("package"):
                found.append(Zone(folder / "energy_uj", int((folder / "max_energy_range_uj").read_text())))
    return found


def spent(before: list[float], after: list[float], most: list[int]) -> float:
    """Joules from one reading to the next.

    `most`: the greatest reading of each counter, in microjoules, after which it begins again; empty for counters in
    joules that do not. A counter may have begun again once: at 300 W one of 2^32 µJ does after 14 s, and of a longer
    decoding this is less than the energy that it used.
    """
    if not most:
        return sum(later - earlier for earlier, later in zip(before, after, strict=True))
    differences = (
        later - earlier + (highest if later < earlier else 0)
        for earlier, later, highest in zip(before, after, most, strict=True)
    )
    return sum(differences) / 1e6
