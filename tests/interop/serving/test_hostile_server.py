"""A server may send anything at any speed: each request ends in time, and each failure is one line."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from specbench.errors import MachineError, UserError
from specbench.interop.server.client import Asked, Client
from specbench.interop.serving import completions
from specbench.interop.serving.completions import Completions
from specbench.sampling import Sampling

Send = Callable[[bytes], None]
PATIENCE = 1.0
OK = b"HTTP/1.1 200 OK\r\n"
JSON = b'{"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}'


def whole_request(connection: socket.socket) -> None:
    """Read a request to its end: a connection that is closed before would be reset, and the answer lost."""
    read = b""
    while b"\r\n\r\n" not in read and (more := connection.recv(2**16)):
        read += more
    head, _, body = read.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    left = int(length[1]) - len(body) if length else 0
    while left > 0 and (more := connection.recv(2**16)):
        left -= len(more)


@contextlib.contextmanager
def served(script: Callable[[Send], None]) -> Iterator[str]:
    """The address of a server that answers each connection by `script`."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return

            def send(content: bytes, connection: socket.socket = connection) -> None:
                if ended.is_set():
                    raise OSError
                connection.sendall(content)

            with connection, contextlib.suppress(OSError):
                whole_request(connection)
                script(send)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(5)


def slowly(content: bytes) -> Callable[[Send], None]:
    def script(send: Send) -> None:
        for byte in content * 1000:
            send(bytes([byte]))
            time.sleep(0.05)

    return script


def for_ever(before: bytes, content: bytes) -> Callable[[Send], None]:
    def script(send: Send) -> None:
        send(before)
        while True:
            send(content)

    return script


def whole(content: bytes) -> Callable[[Send], None]:
    return lambda send: send(content)


def answered(body: bytes, status: bytes = OK) -> Callable[[Send], None]:
    return whole(status + b"Content-Length: %d\r\n\r\n" % len(body) + body)


HOSTILE = {
    "a slow status": slowly(b"HTTP/1.1 200 OK\r\n"),
    "a slow header": slowly(OK + b"X: "),
    "a slow body": slowly(OK + b"Content-Length: 100000\r\n\r\n"),
    "continue for ever": for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body for ever": for_ever(OK + b"\r\n", b"x" * 2**16),
    "chunks for ever": for_ever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 4096 + b"\r\n"),
    "headers for ever": for_ever(OK, b"X-A: b\r\n"),
    "a header line for ever": for_ever(OK + b"X: ", b"x" * 2**16),
    "a length": whole(OK + b"Content-Length: 1000000000000000000\r\n\r\n{}"),
    "a length of an error": whole(b"HTTP/1.1 500 No\r\nContent-Length: 1000000000000000000\r\n\r\n{}"),
    "a negative length": whole(OK + b"Content-Length: -5\r\n\r\n{}"),
    "a chunk": whole(OK + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\n{}"),
    "no chunk": whole(OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}"),
    "a bad port": whole(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:x/\r\nContent-Length: 0\r\n\r\n"),
    "no address": whole(b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n"),
    "a file": whole(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"),
    "a redirect to itself": whole(b"HTTP/1.1 302 Found\r\nLocation: /v1/completions\r\nContent-Length: 0\r\n\r\n"),
    "a body of a redirect": for_ever(b"HTTP/1.1 302 Found\r\nLocation: /v1/x\r\n\r\n", b"x" * 2**16),
    "deep JSON": answered(b"[" * 100_000),
    "deep JSON in an error": answered(b"[" * 100_000, b"HTTP/1.1 500 No\r\n"),
    "a number in an error": answered(b"7", b"HTTP/1.1 500 No\r\n"),
    "a list in an error": answered(b'{"error": [1]}', b"HTTP/1.1 400 No\r\n"),
    "digits": answered(b'{"usage": {"completion_tokens": %s}}' % (b"9" * 5000)),
    "half a surrogate pair": answered(JSON.replace(b'"a"', rb'"\ud800"')),
    "no HTTP": whole(b"\xff" * 100),
    "nothing": whole(b""),
    "no UTF-8": answered(b"\xff\xfe{}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_each_answer_ends_in_time_and_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "LARGEST", 2**20)
    with served(HOSTILE[name]) as address:
        client = Completions(address, "m", timeout=PATIENCE)
        began = time.monotonic()
        with pytest.raises((UserError, MachineError), match=f"^url={address}: ") as caught:
            client.complete((5,), 1, Sampling(), 0)
        assert time.monotonic() - began < 2 * PATIENCE
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_measured_server_that_is_hostile_gives_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "LARGEST", 2**20)
    with served(HOSTILE[name]) as address:
        began = time.monotonic()
        with pytest.raises((UserError, MachineError), match=f"^url={address}: ") as caught:
            Client(address, "m", timeout=PATIENCE).ask(Asked(text="a"), 1, Sampling(), 0)
        assert time.monotonic() - began < 2 * PATIENCE
        assert "\n" not in str(caught.value)


EVENTS = OK + b"Content-Type: text/event-stream\r\n\r\n"
STREAMS = {
    "no JSON": EVENTS + b"data: {\n\n",
    "an endless line": EVENTS + b"data: " + b"x" * 2**21,
    "an error": EVENTS + b'data: {"error": {"message": "out of memory"}}\n\n',
    "no end": EVENTS + b'data: {"choices": [{"text": "a"}]}\n\n',
    "a cut line": EVENTS + b'data: {"choices": [{"text": "a"',
    "nothing": EVENTS,
    "other types": EVENTS + b'data: {"choices": [{"text": 7, "finish_reason": "stop", "token_ids": "x"}], '
    b'"usage": 1}\n\n',
    "a negative count": EVENTS + b'data: {"choices": [{"finish_reason": "stop"}], '
    b'"usage": {"completion_tokens": -1}}\n\n',
    "accepted of none": EVENTS + b'data: {"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 1}, '
    b'"timings": {"draft_n": 0, "draft_n_accepted": 5}}\n\n',
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_each_stream_ends_in_one_line(name: str) -> None:
    with served(whole(STREAMS[name])) as address:
        with pytest.raises((UserError, MachineError), match=f"^url={address}: ") as caught:
            Client(address, "m", timeout=PATIENCE).ask(Asked(text="a"), 1, Sampling(), 0)
        assert "\n" not in str(caught.value)


def test_a_right_answer_is_read_in_pieces() -> None:
    def script(send: Send) -> None:
        send(b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: %d\r\n\r\n" % len(JSON))
        for byte in JSON:
            send(bytes([byte]))

    with served(script) as address:
        found = Completions(address, "m", timeout=PATIENCE).complete((5,), 1, Sampling(), 0)
    assert (found.tokens, found.text) == (1, "a")


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", "a\x00"])
def test_a_key_that_no_header_holds_is_refused_before_it_is_sent(key: str) -> None:
    with pytest.raises(UserError, match="^url=.*the server's key has a character") as caught:
        Completions("http://127.0.0.1:1/v1", "m", token=key)
    assert key not in str(caught.value)


def test_a_server_without_metrics_has_no_counts() -> None:
    """llama.cpp's answers 501 where it was started without --metrics."""
    for status in (b"404 Not Found", b"501 Not Implemented"):
        answer = b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        with served(lambda send, answer=answer: send(answer)) as url:
            assert Completions(url, "m").counts() is None
