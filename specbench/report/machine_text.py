"""The machine of a record in words: what it is, what state it was in, and what of it is not known."""

from collections import Counter
from collections.abc import Iterator, Sequence

from specbench.formatting import number, size
from specbench.records.machine_record import GpuState, MachineRecord
from specbench.records.run_record import RunRecord

PACKAGES = ("torch", "transformers")


def machine_lines(record: RunRecord) -> list[tuple[str, str]]:
    """Names and values; an older record has fewer."""
    surroundings, machine = record["environment"], record.get("machine")
    versions = {"specbench": surroundings["specbench"], "python": surroundings["python"]}
    versions |= {name: version for name in PACKAGES if (version := surroundings["versions"].get(name)) is not None}
    gpu = {} if machine is None else machine.get("gpu", {})
    if driver := gpu.get("driver"):
        versions["driver"] = str(driver)
    lines = [
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", surroundings["commit"] or "not known: no checkout"),
    ]
    if machine is None:
        lines.append(("machine", f"{record['summary'].get('hardware')}; older records hold no more of it"))
    else:
        lines += _processor(machine)
        if "gpu" in machine:
            lines.append(("GPU", _gpu(machine)))
    lines += _states(record)
    if (missing := record["summary"].get("joules_missing")) is not None:
        lines.append(("energy", f"not known: {missing}"))
    return lines


def _processor(machine: MachineRecord) -> Iterator[tuple[str, str]]:
    caches = ", ".join(f"{name} {number // 1024} KiB" for name, number in machine["caches"].items())
    yield (
        "processor",
        _joined(
            machine["processor"],
            _counted(machine["cores"], "cores"),
            _counted(machine["threads"], "threads"),
            caches,
            " ".join(machine["vectors"]),
            machine["microcode"] and f"microcode {machine['microcode']}",
        ),
    )
    if "usable_threads" in machine:
        yield "threads", f"{machine['usable_threads']} by default: {machine.get('usable_why', '')}"
    speed = machine["memory_mts"]
    total = None if machine["memory_bytes"] is None else size(machine["memory_bytes"])
    yield "memory", _joined(total, "speed not known" if speed is None else f"{speed} MT/s")
    most = machine["most_mhz"]
    if machine["governor"] or most:
        yield "frequency", _joined(most and f"at most {most:.0f} MHz", machine["governor"] and f"{machine['governor']}")


def _gpu(machine: MachineRecord) -> str:
    gpu = machine["gpu"]
    return _joined(
        gpu["name"],
        f"clock at most {number(gpu['most_clock_mhz'], 0)} MHz, memory {number(gpu['most_memory_clock_mhz'], 0)} MHz",
        f"power limit {number(gpu['power_limit_w'], 0)} W",
        f"slows down at {number(gpu['slowdown_c'], 0)} °C",
    )


def _states(record: RunRecord) -> Iterator[tuple[str, str]]:
    """The state beside the prompts, as ranges."""
    states = [state for prompt in record["prompts"] for state in prompt.get("states", [])]
    if caps := [state["cap"] for state in states if "cap" in state]:
        yield "frequency cap", f"{100 * min(caps):.0f}% of the greatest, at least, in {len(caps)} readings"
    if gpus := [state["gpu"] for state in states if "gpu" in state]:
        yield "GPU while it ran", _while_running(gpus)


def _while_running(gpus: Sequence[GpuState]) -> str:
    """The readings of a GPU during the run: ranges of clock, temperature and power, and causes of lower clocks."""
    causes = Counter(cause for one in gpus for cause in one["throttled"])
    throttled = ", ".join(f"{cause} in {times}" for cause, times in causes.items()) or "no reason for lower clocks"
    others = max((one["others"] for one in gpus if one["others"] is not None), default=None)
    return _joined(
        f"{len(gpus)} readings",
        _range([one["clock_mhz"] for one in gpus], "MHz"),
        _range([one["temperature_c"] for one in gpus], "°C"),
        _range([one["power_w"] for one in gpus], "W"),
        throttled,
        None if others is None else f"{others} other processes",
    )


def _range(values: Sequence[float | None], unit: str) -> str | None:
    known = [value for value in values if value is not None]
    return f"{min(known):.0f}–{max(known):.0f} {unit}" if known else None


def _counted(found: int | None, what: str) -> str | None:
    return None if found is None else f"{found} {what}"


def _joined(*parts: str | float | None) -> str:
    return ", ".join(str(part) for part in parts if part) or "not known"
