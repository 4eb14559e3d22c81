"""`dtype=auto` on a CPU: the faster of bfloat16 and float32, by a short probe of the target's shape.

Which is faster depends on the processor (some compute in bf16, others emulate it), on the engine and on the model's
size. The result is cached in the user's cache folder, so that all jobs of a sweep, and the same command on another day,
use the same dtype: a different dtype would be a different run.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch

from specbench import border
from specbench.analysis.costs.core_time import least_disturbed
from specbench.analysis.costs.disturbance import MOST_WAITED
from specbench.border import Unreadable
from specbench.config.schema import RunConfig
from specbench.engine.weights.dtype_probe import linear_maps, probe
from specbench.environment import environment, hardware
from specbench.files import PRIVATE, is_own, json_digest, own_cache
from specbench.kernels import built, is_available
from specbench.recorded import OMITTED, from_json, to_json

# float32 is taken if its linear maps need less than this share of bfloat16's time; the rest of a step favours
# bfloat16: t5-mini's maps took 0.9 of bfloat16's time in float32, and its whole step 1.5 times as long.
CLEARLY = 0.6


@dataclass(frozen=True)
class DtypeProbe:
    """The dtype chosen, and the times of the linear maps of the target's shape over one token plus over eight, ms."""

    dtype: Literal["bfloat16", "float32"]
    bfloat16_ms: float
    float32_ms: float
    waited: Annotated[float | None, OMITTED] = None  # share of the time waited for a core, if it was too much

    @property
    def line(self) -> str:
        bound = CLEARLY * self.bfloat16_ms
        return (
            f"dtype=auto: {self.dtype}; linear maps of this shape take {self.bfloat16_ms:.2f} ms in bfloat16 and "
            f"{self.float32_ms:.2f} in float32 (float32 is taken below {bound:.2f} ms); to pin it: dtype={self.dtype}"
            + ("" if self.waited is None else f"; CONTENDED: it waited for a core {100 * self.waited:.0f}% of its time")
        )


_probed: dict[str, DtypeProbe | None] = {}  # of this process


def faster_dtype(config: RunConfig) -> DtypeProbe | None:
    """The faster dtype for the target of `config` on this CPU; None if its shape cannot be read.

    Loading will explain the reason.
    """
    target, engine, threads = config.target, _engine(config), config.threads or torch.get_num_threads()
    source = [target.path, target.hub, target.revision, target.shipped, dict(target.architecture or {})]
    surroundings = environment()
    machine = [hardware(surroundings, "cpu"), threads, surroundings["versions"]["torch"], surroundings["specbench"]]
    if engine == "native":
        machine.append(built())
    key = json_digest([source, engine, machine])
    if key not in _probed:
        _probed[key] = None
        with suppress(Exception):  # whatever a model's own code raises
            maps = linear_maps(target, "target")
            file = own_cache() / f"dtype-{json_digest([maps, engine, machine], 16)}.json"
            _probed[key] = _read(file) or _measured(file, maps, engine, threads)
    return _probed[key]


def _engine(config: RunConfig) -> str:
    """Whose kernels run the linear maps: native, static or eager."""
    if config.engine not in ("auto", "native", "static") or config.target.device_map or config.target.tp_plan:
        return "eager"
    return "native" if config.engine == "native" or (config.engine == "auto" and is_available()) else "static"


def _measured(file: Path, maps: list[tuple[int, int]], engine: str, threads: int) -> DtypeProbe:
    """A new probe, cached in `file` unless the process waited for a core each time that it was tried."""
    (short, wide), waited = least_disturbed(lambda: probe(maps, engine, threads))
    chosen: Literal["bfloat16", "float32"] = "float32" if wide < CLEARLY * short else "bfloat16"
    found = DtypeProbe(chosen, round(1000 * short, 4), round(1000 * wide, 4))
    if waited is not None and waited > MOST_WAITED:
        return replace(found, waited=round(waited, 4))
    return _written(file, found)


def _read(file: Path) -> DtypeProbe | None:
    try:
        found: DtypeProbe = from_json(DtypeProbe, border.parse(border.read_bytes(file), DtypeProbe))
        return found if is_own(file) else None
    except Unreadable:
        return None


def _written(file: Path, found: DtypeProbe) -> DtypeProbe:
    """Cache `found` and return it; if another process was first, return its choice, so that both use the same."""
    part = file.with_suffix(f".{os.getpid()}.part")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "x", opener=lambda name, flags: os.open(name, flags, PRIVATE)) as opened:
                opened.write(json.dumps(to_json(found)))
            os.link(part, file)  # fails if the file exists
        except FileExistsError:
            if (there := _read(file)) is not None:
                return there
            os.replace(part, file)  # what is there is damaged, or another user's
        finally:
            part.unlink(missing_ok=True)
    return found
