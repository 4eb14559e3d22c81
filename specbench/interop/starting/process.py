"""A command that serves: started with its output in a file, waited for, and ended however we end.

Between us and the command stands `guard`, which ends it with its children when we close a pipe or are gone. A failure
is one line: what ended, the last line that it wrote, and the file.
"""

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specbench.errors import MachineError
from specbench.interop.starting import guard

Say = Callable[[str], None]
OFTEN = 0.2  # seconds between two questions whether it is ready
TOLD = 10.0  # seconds between two lines that say how far it is
SHOWN = 200  # characters of a line of a log
TAIL = 2**16  # bytes of a log that are searched for its last line
ERROR = re.compile(r"\b\w*error\b|\b\w*exception\b", re.IGNORECASE)
# What engines write after the cause: llama.cpp, vLLM.
AFTER = re.compile(r"exiting due to|failed to load model|see root cause", re.IGNORECASE)
# A direct opener: no proxy knows loopback addresses.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Process:
    """A command at work, whose standard output and errors go to `log`.

    Raises MachineError if it cannot be started.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, more: Mapping[str, str] | None = None) -> None:
        """Start `command`; `name` is what messages call it, `more` goes into its environment."""
        self.name, self.command, self.log = name, list(command), log
        reading, self._alive = os.pipe()
        try:
            with open(log, "wb") as output:
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", guard.__file__, str(reading), *command],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=(reading,),
                    start_new_session=True, env={**os.environ, **(more or {})},
                )  # fmt: skip
        except OSError as error:
            os.close(self._alive)
            raise MachineError(f"{name}: cannot be started ({error.strerror}); its log would be {log}") from error
        finally:
            os.close(reading)

    def wait_until_ready(self, address: str, seconds: float, say: Say) -> None:
        """Wait until a GET of `address` is answered with 200, `seconds` at most, and say now and then how it is.

        Raises MachineError if the command ends before that, or the time does.
        """
        began = told = time.monotonic()
        while True:
            self.require_running("while it started")
            if _answers(address):
                self.require_running("while it started")  # else somebody else answered on its port
                return
            now = time.monotonic()
            if now - began > seconds:
                raise MachineError(
                    f"{self.name}: not ready after {seconds:g} s; raise the limit, or see {self.log}, which ends with "
                    f"'{self.last_line()}'"
                )
            if now - told > TOLD:
                told = now
                say(f"{self.name}: starting, {now - began:.0f} s; {self.last_line()}")
            time.sleep(OFTEN)

    def wait_until_done(self, seconds: float) -> int | None:
        """Wait until the command ends by itself: its exit code, None if it has not ended after so many seconds."""
        try:
            return self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def require_running(self, when: str = "while it served") -> None:
        """Raises MachineError if the command has ended."""
        code = self._guard.poll()
        if code is not None:
            raise MachineError(
                f"{self.name}: ended with exit code {code} {when}: '{self.last_line()}' (all of it: {self.log})"
            )

    def last_line(self) -> str:
        """The log's last line, or, if the command has ended, the last that names an error; '' if it is empty."""
        try:
            with open(self.log, "rb") as opened:
                opened.seek(max(0, os.fstat(opened.fileno()).st_size - TAIL))
                lines = [line.strip() for line in opened.read().decode("utf-8", "replace").splitlines()]
        except OSError:
            return ""
        lines = [line for line in lines if line]
        ended = self._guard.poll() is not None
        errors = [line for line in lines if ERROR.search(line) and not AFTER.search(line)] if ended else []
        line = (errors or lines or [""])[-1]
        return "".join(character if character.isprintable() else " " for character in line)[:SHOWN]

    def hold(self) -> None:
        """Stop the command and all that it started until `go_on`; without /proc they run on.

        A server without requests may wait by spinning (vLLM does), which slows whatever else is timed.
        """
        self._tell(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the command run again."""
        self._tell(signal.SIGCONT)

    def _tell(self, sign: signal.Signals) -> None:
        for one in guard.members(self._guard.pid):
            if one != self._guard.pid:  # it must see our end
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, sign)

    def stop(self) -> None:
        """End the command, with all that it started, and wait until it is gone."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        try:
            self._guard.wait(guard.PATIENCE + 5)
        except subprocess.TimeoutExpired:
            os.killpg(self._guard.pid, signal.SIGKILL)  # it leads the group of all that it started
            self._guard.wait()


def _answers(address: str) -> bool:
    try:
        with DIRECT.open(address, timeout=5) as answer:
            return bool(answer.status == 200)
    # Nobody listens, it is loading (503), or what answers speaks no HTTP.
    except (OSError, ValueError, http.client.HTTPException):
        return False
