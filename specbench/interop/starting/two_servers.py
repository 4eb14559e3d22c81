"""The two servers of a target: without a draft and with one, side by side if memory allows, otherwise in turn."""

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.analysis.findings.configs import DTYPE
from specbench.engine.weights.published_checkpoint import read_config
from specbench.errors import MachineError, UserError
from specbench.interop.serving.settings.wanted import Recommended, Weights
from specbench.interop.starting.process import Process, Say, free_port
from specbench.interop.starting.startable import MODEL, STARTABLE, Startable, Work
from specbench.loading.model_loader import locked_device, physical_gpu

READY_S = 600.0  # maximum time until a server is ready
LOGS = "engines"  # the folder of the logs, inside the results' folder
SPARE = 2**30  # bytes that are left free
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number


@dataclass(frozen=True)
class Serving:
    """A server at work.

    url: up to and with /v1. engine: with its version. flags: the command as for a shell, with PORT for the port, which
    is another each time: records of equal commands are equal.
    """

    url: str
    model: str
    engine: str
    flags: str
    log: Path
    process: Process


@dataclass(frozen=True)
class Asked:
    """The servers to start: an engine, its target, the draft's candidate, and how both are served."""

    engine: str
    target: Weights
    drafting: Recommended | None
    dtype: str = "float32"
    longest: int = 2048
    threads: int = 1
    sequences: int = 1
    results: Path = Path("results")
    ready_s: float = READY_S
    device: str = "cpu"  # cuda: the engine has a GPU, which is locked as a run locks its own; cpu: it sees none


class Servers:
    """The servers of what was asked for. Leaving the context stops all that run; their logs stay."""

    def __init__(self, asked: Asked, say: Say) -> None:
        """Find the engine. Raises UserError if it is not known or not installed, or has no setting for the draft."""
        if asked.engine not in STARTABLE:
            raise UserError(f"start={asked.engine}: must be of {', '.join(STARTABLE)}")
        self.startable: Startable = STARTABLE[asked.engine]
        self.asked, self.say = asked, say
        if asked.dtype not in self.startable.dtypes:
            raise UserError(f"dtype={asked.dtype}: start={asked.engine} serves {', '.join(self.startable.dtypes)}")
        self.program = self.startable.require()
        self._running: dict[bool, Serving] = {}
        self._gpu = contextlib.ExitStack()
        self._environment: dict[str, str] = {}
        self.device = "cpu"  # that the servers compute on, once one is started

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *ended: object) -> None:
        self.stop()

    def plain(self) -> Serving:
        """The server without a draft, started if it does not run."""
        return self._serving(drafting=False)

    def drafting(self) -> Serving:
        """The server with the draft, started if it does not run."""
        return self._serving(drafting=True)

    def side_by_side(self) -> bool:
        """Whether memory holds both servers at once, by the bytes of the weights of those that do not run yet."""
        free = available_memory()
        missing = [drafting for drafting in (False, True) if drafting not in self._running]
        return free is None or free - SPARE > sum(map(self._needs, missing))

    @contextlib.contextmanager
    def alone(self, which: str) -> Iterator[None]:
        """The other server than `which` (drafting | plain) is held: some wait for requests by spinning."""
        other = self._running.get(which != "drafting")
        if other is None:
            yield
            return
        other.process.hold()
        try:
            yield
        finally:
            other.process.go_on()

    def require_running(self) -> None:
        """Raises MachineError if a server that was started has ended by itself."""
        for serving in self._running.values():
            serving.process.require_running()

    def stop(self) -> None:
        """Stop what runs, and release the GPU."""
        for serving in self._running.values():
            serving.process.stop()
        self._running.clear()
        self._gpu.close()
        self._environment.clear()

    def _serving(self, drafting: bool) -> Serving:
        if (found := self._running.get(drafting)) is not None:
            found.process.require_running()
            return found
        free = available_memory()
        if self._running and free is not None and free - SPARE < self._needs(drafting):
            self.say(f"{self.asked.engine}: memory for one server at a time; the other is stopped")
            self.stop()
        self._running[drafting] = serving = self._start(drafting)
        return serving

    def _start(self, drafting: bool) -> Serving:
        if not self._environment and self.startable.on_gpus:
            device = self._gpu.enter_context(locked_device(self.asked.device, self.say))
            self.device = str(device)
            self._environment["CUDA_VISIBLE_DEVICES"] = "" if device.index is None else physical_gpu(device.index)
        asked, port = self.asked, free_port()
        work = Work(
            asked.target, asked.drafting if drafting else None, asked.dtype, asked.longest, asked.threads, port,
            asked.sequences,
        )  # fmt: skip
        call = self.startable.call(self.program, work, self.say)
        name = f"{asked.engine} {'with its draft' if drafting else 'without a draft'}"
        log = log_file(asked.results, f"{asked.engine}-{'drafting' if drafting else 'plain'}")
        self.say(f"{name}: starting on port {port}; log: {log}")
        process = Process(name, call.command, log, {**call.environment, **self._environment})
        try:
            process.wait_until_ready(f"http://127.0.0.1:{port}{self.startable.ready}", asked.ready_s, self.say)
        except BaseException:
            process.stop()
            raise
        version = self.startable.version_of(f"http://127.0.0.1:{port}")
        told = " ; ".join(filter(None, (as_told(call.command, port), call.file)))
        return Serving(f"http://127.0.0.1:{port}/v1", MODEL, version, told, log, process)

    def _needs(self, drafting: bool) -> float:
        """Bytes that a server takes, about."""
        weights = [self.asked.target]
        if drafting and self.asked.drafting is not None and self.asked.drafting.draft is not None:
            weights.append(self.asked.drafting.draft)
        return self.startable.weighs * sum(_bytes(one, self.asked.dtype) for one in weights) + 2**29


@contextlib.contextmanager
def started(asked: Asked, say: Say) -> Iterator[Servers]:
    """The servers of `asked`, which are stopped at the end of the block, whatever ends it."""
    with Servers(asked, say) as servers:
        yield servers


def as_told(command: Sequence[str], port: int) -> str:
    """A command as records have it: only the name of a file or folder of this machine, and PORT for the port."""

    def word(one: str) -> str:
        if not one.startswith("{"):
            return os.path.basename(one.rstrip("/")) if os.path.isabs(one) else one
        values = json.loads(one)
        return json.dumps({key: word(value) if isinstance(value, str) else value for key, value in values.items()})

    return re.sub(rf"\b{port}\b", "PORT", shlex.join(map(word, command)))


def log_file(results: Path, name: str) -> Path:
    """A new file for a log in the folder of the results."""
    folder = results / LOGS
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"{folder}: cannot be written ({error.strerror}); set results=FOLDER to another place"
        ) from error
    number = 1
    while True:
        file = folder / f"{name}-{number}.log"
        try:
            file.touch(exist_ok=False)
            return file
        except FileExistsError:
            number += 1


def available_memory() -> float | None:
    """Bytes that programs can still get; None if the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024.0
    except (OSError, ValueError):
        pass
    return None


def _bytes(weights: Weights, dtype: str) -> float:
    """Bytes of weights in a file or folder once they are served in `dtype`; 0 if they are in neither."""
    place = Path(weights.place)
    if place.is_file():
        return place.stat().st_size
    if not place.is_dir():
        return 0
    stored = sum(file.stat().st_size for file in place.glob("*.safetensors"))
    try:
        config = read_config(weights.place, {}, "target")
    except UserError:  # the engine says what is wrong with it
        config = {}
    of_file = next((str(config[name]) for name in DTYPE if config.get(name)), "float32")
    return stored * SIZES.get(dtype, 4) / SIZES.get(of_file, 4)
