"""The machine of a run, from Linux's /proc and /sys: its description, and its state beside each prompt.

Values that the system does not report are absent; nothing here needs rights. Reading the state takes well under a
millisecond and is done while nothing is timed. The GPU's part is `gpu_state`.
"""

import contextlib
import os
import re
import struct
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from specbench.experiment.gpu_state import Gpu, gpu_of
from specbench.experiment.threads import usable_threads
from specbench.records.machine_record import MachineRecord, StateRecord

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
        """The description of the machine."""
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
        """The machine's state; None if it is unknown, or if reading it again so soon would cost too much."""
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
    """Mega-transfers per second of the slowest memory module in a table of SMBIOS, which on most systems root reads.

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
    """The folders of frequency policies, each of one core or several; a sample if there are many."""
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
    """The content of a system file; None if it is empty or cannot be read."""
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
