"""The machine of a run, from Linux's /proc and /sys: what it is, and its state beside each prompt.

What the system does not tell is absent; nothing here needs rights. Reading the state takes well under a millisecond and
is done while nothing is timed. The GPU's part is at the end of this file.
"""

import contextlib
import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from specbench.experiment.threads import usable_threads
from specbench.records.machine_record import GpuRecord, GpuState, MachineRecord, StateRecord

ROOT = Path("/")
# The widest first; the system's names of flags (x86) and features (Arm).
VECTORS = (
    "amx_tile", "amx_bf16", "amx_int8", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "avx_vnni", "avx2",
    "sve2", "sve", "bf16", "asimd",
)  # fmt: skip
SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "": 1}
MOST_POLICIES = 16  # whose caps are read beside each prompt
SHARE = 0.05  # of the time of a run, at most, that reading the state of a slow source takes
MEMORY_DEVICE, CONFIGURED_SPEED = 17, 0x20  # of SMBIOS: the type of a memory module, and where its speed is


class Machine:
    """The machine under `root`, and the GPU that a run computes on."""

    def __init__(self, device: torch.device, root: Path = ROOT) -> None:
        self.gpu: Gpu | None = gpu_of(device)
        cpus = root / "sys/devices/system/cpu"
        self._root, self._cpus = root, cpus
        policies = _policies(cpus)
        # Caps lie beside the greatest frequency, which does not change.
        self._caps = [(folder / "scaling_max_freq", _number(folder / "cpuinfo_max_freq")) for folder in policies]
        self._heat = list(cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))[:MOST_POLICIES]
        self._next = 0.0

    def record(self) -> MachineRecord:
        """What the machine is."""
        processor = _cpuinfo(self._root / "proc/cpuinfo")
        policy = next(iter(_policies(self._cpus)), self._cpus)
        flags = {*processor.get("flags", "").split(), *processor.get("Features", "").split()}
        found: MachineRecord = {
            "processor": processor.get("model name") or processor.get("cpu model"),
            "cores": len({_text(file) for file in self._cpus.glob("cpu[0-9]*/topology/thread_siblings_list")}) or None,
            "threads": os.cpu_count() if self._root == ROOT else len(list(self._cpus.glob("cpu[0-9]*"))) or None,
            "caches": _caches(self._cpus / "cpu0/cache"),
            "vectors": [name for name in VECTORS if name in flags],
            "memory_bytes": _memory(self._root / "proc/meminfo"),
            "memory_mts": memory_speed(self._root / "sys/firmware/dmi/tables/DMI"),
            "governor": _text(policy / "scaling_governor"),
            "least_mhz": _mhz(policy / "cpuinfo_min_freq"),
            "most_mhz": _mhz(policy / "cpuinfo_max_freq"),
            "microcode": processor.get("microcode"),
        }
        if self._root == ROOT:
            found["usable_threads"], found["usable_why"] = usable_threads()
        if self.gpu is not None:
            found["gpu"] = self.gpu.record()
        return found

    def state(self) -> StateRecord | None:
        """The machine's state; None where nothing is known, or where reading it again so soon would cost too much."""
        began = time.perf_counter()
        if began < self._next:
            return None
        state: StateRecord = {}
        shares = [cap / most for file, most in self._caps if most and (cap := _number(file)) is not None]
        if shares:
            state["cap"] = min(shares)
        counts = [count for file in self._heat if (count := _number(file)) is not None]
        if counts:
            state["overheated"] = int(sum(counts))
        if self.gpu is not None and (of_gpu := self.gpu.state()) is not None:
            state["gpu"] = of_gpu
        ended = time.perf_counter()
        if self.gpu is not None and self.gpu.is_slow:
            self._next = ended + (ended - began) / SHARE
        return state or None


@cache
def machine_of(device: torch.device) -> Machine:
    """This machine, for runs on `device`."""
    return Machine(device)


def memory_speed(table: Path) -> int | None:
    """Mega-transfers a second of the slowest memory module in a table of SMBIOS, which on most systems root reads.

    DMTF DSP0134, section 7.18: a structure is a type, its length, a handle and fields, then strings up to two zeros.
    """
    try:
        content = table.read_bytes()
    except OSError:
        return None
    speeds, at = list[int](), 0
    while at + 4 <= len(content):
        kind, length = content[at], content[at + 1]
        if kind == MEMORY_DEVICE and length >= CONFIGURED_SPEED + 2 and at + length <= len(content):
            (speed,) = struct.unpack_from("<H", content, at + CONFIGURED_SPEED)
            if 0 < speed < 0xFFFF:  # 0: not known; 0xFFFF: in a longer field
                speeds.append(speed)
        end = content.find(b"\0\0", at + length)
        if length < 4 or end < 0:
            break
        at = end + 2
    return min(speeds, default=None)


def _policies(cpus: Path) -> list[Path]:
    """The folders of frequency policies, each of one core or several; some of them where there are many."""
    found = sorted(cpus.glob("cpufreq/policy[0-9]*"))
    return found[:: -(-len(found) // MOST_POLICIES) or 1]


def _caches(folder: Path) -> dict[str, int]:
    found = {}
    for index in sorted(folder.glob("index[0-9]*")):
        level, kind, size = (_text(index / name) for name in ("level", "type", "size"))
        measured = re.fullmatch(r"(\d+)([KMG]?)", size or "")
        if level and measured:
            suffix = {"Data": "d", "Instruction": "i"}.get(kind or "", "")
            found[f"L{level}{suffix}"] = int(measured[1]) * SIZES[measured[2]]
    return found


def _cpuinfo(file: Path) -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    return dict(_lines((_text(file) or "").partition("\n\n")[0]))


def _memory(file: Path) -> int | None:
    total = dict(_lines(_text(file) or "")).get("MemTotal", "").split()
    return 1024 * int(total[0]) if total else None


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()


def _text(file: Path) -> str | None:
    """The content of a file of the system; None where it has none, or may not be read."""
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip() or None
    return None


def _number(file: Path) -> float | None:
    with contextlib.suppress(ValueError):
        return float(_text(file) or "")
    return None


def _mhz(file: Path) -> float | None:
    """A frequency that is given in kHz."""
    found = _number(file)
    return None if found is None else found / 1000


# A GPU's limits, state and energy, as its driver reports them: by NVML, or else by `nvidia-smi`. Both are optional.
#
# NVML is read through `pynvml` (the package nvidia-ml-py) where that is installed: a reading takes about a millisecond.
# `nvidia-smi` starts a process for each reading and counts no energy. `torch` names the GPU by its UUID, which also
# holds where CUDA_VISIBLE_DEVICES hides others.


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
    """The GPU of a CUDA device; None for other devices, or where nothing can be read of it."""
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
        """An answer; None where this GPU, or this version of the library, has none."""
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
        """The values of `names`; None where they cannot be read."""
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
