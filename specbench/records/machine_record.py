"""The machine of a run: what it is, and the state that it was in."""

from typing import Annotated, NotRequired, TypedDict


class GpuRecord(TypedDict):
    """A GPU and its limits, as its driver reports them; null if it does not."""

    name: str | None
    driver: str | None
    most_clock_mhz: Annotated[float | None, "MHz of its multiprocessors, at most"]
    most_memory_clock_mhz: Annotated[float | None, "MHz of its memory, at most"]
    power_limit_w: Annotated[float | None, "watts"]
    slowdown_c: Annotated[float | None, "degrees Celsius from which it lowers its clocks"]


class GpuState(TypedDict):
    """The state of a GPU at one moment; null if its driver does not tell."""

    clock_mhz: Annotated[float | None, "MHz of its multiprocessors"]
    memory_clock_mhz: Annotated[float | None, "MHz of its memory"]
    temperature_c: Annotated[float | None, "degrees Celsius"]
    power_w: Annotated[float | None, "watts"]
    throttled: Annotated[list[str], "why its clocks are below their most, in words; empty: they are not, or it idles"]
    others: Annotated[int | None, "other processes that compute on it"]


class StateRecord(TypedDict):
    """The state of the machine before or after a prompt, read while nothing was timed."""

    cap: NotRequired[Annotated[float, "the processor's frequency that is allowed, over its greatest"]]
    overheated: NotRequired[Annotated[int, "how often its cores have throttled for heat since the system started"]]
    gpu: NotRequired[GpuState]


class MachineRecord(TypedDict):
    """The machine that a run was measured on; null if the system does not tell. No part of a run's identity."""

    processor: str | None
    cores: Annotated[int | None, "of all sockets, without hyper-threads"]
    threads: Annotated[int | None, "that run at once on all cores"]
    caches: Annotated[dict[str, int], "bytes of each cache of the first core, by level: L1d, L1i, L2, L3"]
    vectors: Annotated[list[str], "the widest vector and matrix instructions: avx2, avx512f, amx_bf16, sve, ..."]
    memory_bytes: int | None
    memory_mts: Annotated[int | None, "mega-transfers per second of its memory, as configured"]
    governor: Annotated[str | None, "the policy that sets the processor's frequency"]
    least_mhz: float | None
    most_mhz: float | None
    microcode: str | None
    usable_threads: NotRequired[Annotated[int, "threads of a run whose config names none"]]
    usable_why: NotRequired[Annotated[str, "what limits them: physical cores, a quota of the container, ..."]]
    gpu: NotRequired[GpuRecord]
