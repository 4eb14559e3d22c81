"""The journal of a run: a line for each finished prompt, so that a killed run can resume.

A journal is one JSON-lines file per run, locked by the process that works on it. Each process that works on the run
begins with a `part` line; a prompt's line is appended and flushed to the disk when the prompt is done. A last line that
was cut off by a kill or a full disk is dropped.

The record at the end is made only from the journal's lines, so that a resumed run and an uninterrupted run give the
same completions and the same alpha, bit for bit.
"""

import contextlib
import errno
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypedDict

from filelock import FileLock, Timeout

from specbench import border
from specbench.border import Unreadable
from specbench.errors import MachineError, UserError
from specbench.files import note_finished, unwritable
from specbench.recorded import from_json, to_json
from specbench.records.catalog import Damaged
from specbench.records.prediction import DraftingPlan
from specbench.records.run_record import SCHEMA_VERSION, Process, PromptRecord
from specbench.records.store import require_file_name

SECONDS_BETWEEN_LOOKS = 0.5
EARLIER = "an earlier version"  # which did not write what code it was


class _Line(TypedDict, total=False):
    """A line of a journal: one of its two keys."""

    part: Process
    prompt: PromptRecord


def codes_of(processes: Iterable[Process]) -> list[str]:
    """The code of each process."""
    return [process.get("code", EARLIER) for process in processes]


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
            self._opened = self._open()
            self._read()
        except Timeout as error:
            raise MachineError(f"{self.run_id}: another process works on this run; wait for it, or stop it") from error
        except OSError as error:
            self._close()
            raise unwritable(self.file, error) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        began = self.parts or self.prompts
        if not began:  # a run that did not begin leaves no file
            self.remove()
        self._close()

    def _open(self) -> IO[bytes]:
        """The journal's own file. A link is not followed: what it leads to would be cut to the journal's length."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            number = os.open(self.file, flags, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise UserError(f"{self.file}: is a link, which is not followed; remove it") from error
        try:
            border.require_regular(number)
        except Unreadable as error:
            os.close(number)
            raise UserError(f"{self.file}: is {error}; remove it") from error
        # No buffer: bytes that a full disk did not take are not written again when the file is closed.
        return open(number, "a+b", buffering=0)

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
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
        """Read the complete lines, and cut off what follows them."""
        assert self._opened is not None
        self._opened.seek(0)
        whole = 0
        with open(self._opened.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(iter(lambda: lines.readline(border.LONGEST_LINE), b""), 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    self._take(line)
                except Unreadable as error:
                    warnings.warn(
                        f"{self.file}, line {number}: is damaged ({error}); prompts from there on are decoded again",
                        Damaged,
                        stacklevel=4,
                    )
                    break
                whole += len(line)
        self._opened.truncate(whole)

    def _take(self, line: bytes) -> None:
        """Read one line. Raises Unreadable if it is damaged, and UserError if a newer version wrote it."""
        version = border.parse(line, dict[str, object], finite=False).get("schema_version")
        if type(version) is int and version > SCHEMA_VERSION:
            raise UserError(
                f"{self.file}: a newer version began this run (schema version {version}); finish it there, or remove "
                "the file to begin again"
            )
        if version != SCHEMA_VERSION:
            raise Unreadable(f"schema version {border.shown(version)}")
        entry: _Line = from_json(_Line, border.parse(line, _Line, finite=False))
        if "part" in entry:
            self.parts.append(entry["part"])
        elif "prompt" in entry:
            self.prompts[entry["prompt"]["index"]] = entry["prompt"]
            note_finished()
        else:
            raise Unreadable("neither a part nor a prompt")

    def begin_part(self, started: str, gamma: DraftingPlan, code: str) -> None:
        """A process of this code starts or resumes the run, with this choice of gamma."""
        self.parts.append({"started": started, "gamma": gamma, "after_prompts": len(self.prompts), "code": code})
        self._append({"part": self.parts[-1]})

    def other_code(self, code: str) -> list[str]:
        """The code of the earlier processes that is not `code`."""
        return sorted({*codes_of(self.parts)} - {code})

    def add(self, prompt: PromptRecord) -> None:
        """Append a finished prompt; it is on the disk when this returns."""
        self._append({"prompt": prompt})
        self.prompts[prompt["index"]] = prompt
        note_finished()

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
        line = (
            json.dumps({"schema_version": SCHEMA_VERSION, **entry}, ensure_ascii=False, default=to_json).encode()
            + b"\n"
        )
        before = os.fstat(self._opened.fileno()).st_size
        try:
            left = memoryview(line)
            while left:  # a disk that is nearly full takes a part of it
                left = left[self._opened.write(left) :]
            os.fsync(self._opened.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._opened.truncate(before)
            raise unwritable(self.file, error) from error
