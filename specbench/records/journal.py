"""The journal of a run: a line for each finished prompt, so that a killed run can resume.

A journal is one JSON-lines file per run, locked by the process that works on it. Each process that works on the run
begins with a `part` line; a prompt's line is appended and flushed to the disk when the prompt is done. A last line that
was cut off by a kill or a full disk is dropped.

The record at the end is made from the journal's lines alone, so that a resumed run and an uninterrupted run give the
same completions and the same alpha, bit for bit.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from filelock import FileLock, Timeout

from specbench.errors import MachineError
from specbench.records.schema import SCHEMA_VERSION, GammaRecord, Process, PromptRecord
from specbench.records.store import require_file_name

SECONDS_BETWEEN_LOOKS = 0.5


class Journal:
    """The journal of `run_id`, as a context manager: locked on entry, released on exit.

    While another process works on the run, entry waits for it, after calling `waiting` once; without `waiting` it
    raises `MachineError`.
    """

    def __init__(self, results: str | Path, run_id: str, waiting: Callable[[], None] | None = None) -> None:
        self.run_id = run_id
        self._waiting = waiting
        self.file = Path(results) / "journals" / f"{require_file_name(run_id)}.jsonl"
        self.prompts: dict[int, PromptRecord] = {}
        self.parts: list[Process] = []
        self._lock = FileLock(self.file.with_suffix(".lock"))
        self._opened: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._acquire()
            self._opened = open(self.file, "a+b")
        except Timeout as error:
            raise MachineError(f"{self.run_id}: another process works on this run; wait for it, or stop it") from error
        except OSError as error:
            raise self._unwritable(error) from error
        self._read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._opened is not None:
            self._opened.close()
        if not self.parts and not self.prompts:  # a run that did not begin leaves no file
            self.remove()
        self._lock.release()

    def _acquire(self) -> None:
        """Lock the run. Raises Timeout if another process holds it and nobody waits."""
        told = False
        while True:
            try:
                self._lock.acquire(blocking=False)
                return
            except Timeout:
                if self._waiting is None:
                    raise
            if not told:
                self._waiting()
                told = True
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _read(self) -> None:
        """Read the complete lines, and cut off a partial last line."""
        assert self._opened is not None
        self._opened.seek(0)
        whole = 0
        for line in self._opened:
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                entry = None
            if not isinstance(entry, dict) or entry.get("schema_version") != SCHEMA_VERSION:
                break
            if "part" in entry:
                self.parts.append(entry["part"])
            else:
                self.prompts[entry["prompt"]["index"]] = entry["prompt"]
            whole += len(line)
        self._opened.truncate(whole)

    def begin_part(self, started: str, gamma: GammaRecord) -> None:
        """A process starts or resumes the run, with this choice of gamma."""
        self.parts.append({"started": started, "gamma": gamma, "after_prompts": len(self.prompts)})
        self._append({"part": self.parts[-1]})

    def add(self, prompt: PromptRecord) -> None:
        """Append a finished prompt; it is on the disk when this returns."""
        self._append({"prompt": prompt})
        self.prompts[prompt["index"]] = prompt

    def restart(self) -> None:
        """Discard all finished prompts: the run starts again."""
        assert self._opened is not None
        self._opened.truncate(0)
        self.prompts.clear()
        self.parts.clear()

    def remove(self) -> None:
        """Remove the journal, after the record was written."""
        self.file.unlink(missing_ok=True)
        # While it is held: a lock that is let go first could be taken, and then lose its file, by somebody else.
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()

    def _append(self, entry: Mapping[str, object]) -> None:
        assert self._opened is not None
        line = json.dumps({"schema_version": SCHEMA_VERSION, **entry}, ensure_ascii=False).encode() + b"\n"
        try:
            self._opened.write(line)
            self._opened.flush()
            os.fsync(self._opened.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> MachineError:
        return MachineError(
            f"{self.file}: cannot be written ({error.strerror}); finished work is kept: run the same command "
            "again, or set results=FOLDER elsewhere"
        )
