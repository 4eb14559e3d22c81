"""A GPU's limits, state and energy, as its driver reports them: by NVML or by `nvidia-smi`. Both are optional."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

import torch

from specbench.records.machine_record import GpuRecord, GpuState

T = TypeVar("T")
# NVML's bits (nvml.h, nvmlClocksEventReasons), without idling (1) and clocks that a user has set (2, 0x10, 0x100).
REASONS = {
    0x04: "power limit", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake",
}  # fmt: skip
SM_CLOCK, MEMORY_CLOCK, SLOWDOWN = 1, 2, 1  # of NVML's enumerations
OF_GPU = "name,driver_version,clocks.max.sm,clocks.max.mem,power.limit"
OF_STATE = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_throttle_reasons.active"
SECONDS = 5  # after which `nvidia-smi` is given up


class Gpu(Protocol):
    """A GPU to ask."""

    is_slow: bool  # too slow to be read beside every prompt
    no_energy: str | None  # why `joules` has nothing

    def record(self) -> GpuRecord: ...

    def state(self) -> GpuState | None: ...

    def joules(self) -> float | None:
        """Energy since the driver started."""
        ...


def gpu_of(device: torch.device) -> Gpu | None:
    """The GPU of a CUDA device; None for other devices, or if nothing can be read of it."""
    if device.type != "cuda":
        return None
    try:
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    except (AttributeError, AssertionError, RuntimeError):  # an older torch, or no driver
        return None
    if find_spec("pynvml") is not None:
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return Nvml(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    return Smi(uuid) if shutil.which("nvidia-smi") else None


def reasons_in(bits: int) -> list[str]:
    """The reasons in NVML's bits for clocks below a GPU's most, in words."""
    return [words for bit, words in REASONS.items() if bits & bit]


def others_of(processes: Sequence[object]) -> int:
    """The processes but ours, which is one of them: in a container their numbers are the host's, and tell nothing."""
    return max(0, len(processes) - 1)


class Nvml:
    """A GPU through NVML; `nvml` is the module `pynvml`."""

    is_slow = False
    no_energy: str | None = None

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        if self.joules() is None:
            self.no_energy = "this GPU counts no energy"

    def record(self) -> GpuRecord:
        nvml, handle = self._nvml, self._handle
        limit = self._asked(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        return {
            "name": self._asked(lambda: _word(nvml.nvmlDeviceGetName(handle))),
            "driver": self._asked(lambda: _word(nvml.nvmlSystemGetDriverVersion())),
            "most_clock_mhz": self._asked(lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, SM_CLOCK))),
            "most_memory_clock_mhz": self._asked(lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, MEMORY_CLOCK))),
            "power_limit_w": None if limit is None else limit / 1000,
            "slowdown_c": self._asked(lambda: float(nvml.nvmlDeviceGetTemperatureThreshold(handle, SLOWDOWN))),
        }

    def state(self) -> GpuState | None:
        nvml, handle = self._nvml, self._handle
        power = self._asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        running = self._asked(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return {
            "clock_mhz": self._asked(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, SM_CLOCK))),
            "memory_clock_mhz": self._asked(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, MEMORY_CLOCK))),
            "temperature_c": self._asked(lambda: float(nvml.nvmlDeviceGetTemperature(handle, 0))),
            "power_w": None if power is None else power / 1000,
            "throttled": reasons_in(self._asked(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0),
            "others": None if running is None else others_of(running),
        }

    def joules(self) -> float | None:
        spent = self._asked(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return None if spent is None else spent / 1000

    def _asked(self, ask: Callable[[], T]) -> T | None:
        """An answer; None if this GPU, or this version of the library, has none."""
        try:
            return ask()
        except (self._nvml.NVMLError, AttributeError):
            return None


class Smi:
    """A GPU through `nvidia-smi`."""

    is_slow = True
    no_energy: str | None = "only NVML counts a GPU's energy, and its package nvidia-ml-py is not installed"

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid

    def record(self) -> GpuRecord:
        name, driver, clock, memory_clock, limit = self._query("gpu", OF_GPU) or [""] * 5
        return {
            "name": name or None,
            "driver": driver or None,
            "most_clock_mhz": _float(clock),
            "most_memory_clock_mhz": _float(memory_clock),
            "power_limit_w": _float(limit),
            "slowdown_c": None,
        }

    def state(self) -> GpuState | None:
        found = self._query("gpu", OF_STATE)
        if found is None:
            return None
        clock, memory_clock, temperature, power, reasons = found
        running = self._lines("compute-apps", "pid")
        return {
            "clock_mhz": _float(clock),
            "memory_clock_mhz": _float(memory_clock),
            "temperature_c": _float(temperature),
            "power_w": _float(power),
            "throttled": reasons_in(int(reasons, 16)) if reasons.startswith("0x") else [],
            "others": None if running is None else others_of(running),
        }

    def joules(self) -> float | None:
        return None

    def _query(self, what: str, names: str) -> list[str] | None:
        """The values of `names`; None if they cannot be read."""
        lines = self._lines(what, names)
        values = [value.strip() for value in lines[0].split(",")] if lines else []
        return values if len(values) == len(names.split(",")) else None

    def _lines(self, what: str, names: str) -> list[str] | None:
        command = ["nvidia-smi", f"--id={self._uuid}", f"--query-{what}={names}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError):
            return None
        return [line for line in done.stdout.splitlines() if line.strip()]


def _word(text: str | bytes) -> str:
    """Older bindings return bytes."""
    return text.decode() if isinstance(text, bytes) else text


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # '[N/A]'
        return None
