"""A started command is waited for, its failures are one line, and it ends with its children however we end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import MachineError
from specbench.interop.starting.guard import members
from specbench.interop.starting.process import Process, _answers, free_port

# A server that answers 503 until a second has passed, with a child of its own; it prints the child's number.
SERVER = """
import http.server, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
began = time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if time.monotonic() - began > float(sys.argv[2]) else 503)
        self.end_headers()
    def log_message(self, *said): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(number: int, seconds: float = 10) -> bool:
    ends = time.monotonic() + seconds
    while is_alive(number) and time.monotonic() < ends:
        time.sleep(0.02)
    return not is_alive(number)


def child_of(log: Path) -> int:
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        words = log.read_text().split() if log.exists() else []
        if words[:1] == ["child"] and len(words) > 1:
            return int(words[1])
        time.sleep(0.02)
    raise AssertionError("no child")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def test_a_server_is_waited_for_and_ended_with_its_children(log: Path) -> None:
    port = free_port()
    process = Process("engine", python(SERVER, port, 0.5), log)
    try:
        began = time.monotonic()
        process.wait_until_ready(f"http://127.0.0.1:{port}/health", 20, lambda line: None)
        assert time.monotonic() - began >= 0.3
        child = child_of(log)
        assert is_alive(child)
        process.require_running()
    finally:
        process.stop()
    assert gone(child, 1)
    process.stop()  # twice is once


def test_a_command_that_ends_is_one_line_with_its_last_error(log: Path) -> None:
    ending = "import sys; print('loading'); print('OSError: no such weights'); print('bye'); sys.exit(3)"
    process = Process("engine", python(ending), log)
    with pytest.raises(MachineError) as raised:
        process.wait_until_ready(f"http://127.0.0.1:{free_port()}/health", 20, lambda line: None)
    process.stop()
    assert str(raised.value) == (
        f"engine: ended with exit code 3 while it started: 'OSError: no such weights' (all of it: {log})"
    )


def test_a_command_that_is_not_ready_in_time_is_told(log: Path) -> None:
    process = Process("engine", python("print('loading', flush=True); import time; time.sleep(600)"), log)
    try:
        with pytest.raises(
            MachineError, match=f"engine: not ready after 1 s; raise the limit, or see {log}, .*'loading'"
        ):
            process.wait_until_ready(f"http://127.0.0.1:{free_port()}/health", 1, lambda line: None)
    finally:
        process.stop()


def test_a_program_that_is_not_there_is_told(log: Path) -> None:
    process = Process("engine", ["/no/such/program"], log)
    with pytest.raises(MachineError, match="ended with exit code 1 while it started: 'FileNotFoundError"):
        process.wait_until_ready(f"http://127.0.0.1:{free_port()}/health", 20, lambda line: None)
    process.stop()


def test_a_port_that_somebody_else_has_is_no_readiness(log: Path) -> None:
    port = free_port()
    other = Process("other", python(SERVER, port, 0), log.with_name("other.log"))
    try:
        other.wait_until_ready(f"http://127.0.0.1:{port}/health", 20, lambda line: None)
        process = Process("engine", python("print('OSError: address in use'); raise SystemExit(1)"), log)
        process._guard.wait(20)
        with pytest.raises(MachineError, match="address in use"):
            process.wait_until_ready(f"http://127.0.0.1:{port}/health", 20, lambda line: None)
        process.stop()
    finally:
        other.stop()


def test_who_speaks_no_http_on_its_port_is_no_readiness() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connected, _ = other.accept()
            with connected:
                connected.sendall(b"SSH-2.0-other\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        assert not _answers(f"http://127.0.0.1:{other.getsockname()[1]}/health")
        thread.join(10)


HOLDER = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
from specbench.interop.starting.process import Process
process = Process("engine", [sys.executable, "-c", {server!r}, {port!r}, "0"], Path({log!r}))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_us_however_we_end(how: signal.Signals, log: Path) -> None:
    holder = HOLDER.format(server=SERVER, port=str(free_port()), log=str(log))
    with subprocess.Popen(python(holder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as us:
        assert us.stdout is not None and us.stdout.readline() == "started\n"
        child = child_of(log)
        us.send_signal(how)
        us.wait(20)
    assert gone(child)


def test_a_command_that_does_not_listen_is_killed(log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specbench.interop.starting import guard

    impatient = tmp_path / "guard.py"
    impatient.write_text(Path(guard.__file__).read_text().replace("PATIENCE = 10.0", "PATIENCE = 0.3"))
    monkeypatch.setattr(guard, "__file__", str(impatient))
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child', os.getpid(), flush=True); time.sleep(600)"  # noqa: E501
    process = Process("engine", python(deaf), log)
    number = child_of(log)
    process.stop()
    assert gone(number, 2)


def test_what_a_command_left_behind_ends_with_it(log: Path) -> None:
    leaving = (
        "import subprocess, sys; "
        "print('child', subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)"
    )
    process = Process("engine", python(leaving), log)
    child = child_of(log)
    assert gone(child)
    assert os.path.exists(log)
    process.stop()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_a_command_that_is_held_stands_still_and_ends_nevertheless(tmp_path: Path) -> None:
    """With all that it started; its guard is not held, so that it sees our end."""
    ticks = tmp_path / "ticks"
    child = f"import time\nwhile True:\n    open({str(ticks)!r}, 'a').write('.'); time.sleep(.01)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = Process("it", [sys.executable, "-c", parent], tmp_path / "log")
    try:
        _wait_until(lambda: ticks.exists() and ticks.stat().st_size > 0)
        process.hold()
        _wait_until(lambda: {*_states(process)} == {"T"})
        before = ticks.stat().st_size
        time.sleep(0.1)
        assert ticks.stat().st_size == before
        process.go_on()
        _wait_until(lambda: ticks.stat().st_size > before)
        process.hold()
    finally:
        process.stop()
    assert members(process._guard.pid) == []


def _states(process: Process) -> list[str]:
    """The states of the processes of a command, without its guard's."""
    texts = [Path(f"/proc/{one}/stat").read_text() for one in members(process._guard.pid) if one != process._guard.pid]
    return [text.rpartition(")")[2].split()[0] for text in texts]


def _wait_until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)
