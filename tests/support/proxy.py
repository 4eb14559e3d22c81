"""Between a client and a server: passes on what both say, until it is told to do otherwise."""

import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
DONE = b"data: [DONE]\n\n"


class Proxy:
    """In front of the server at `behind`, an address up to and with /v1.

    Attributes:
        fault: what happens to requests for completions instead of what the server says; None: nothing.
        good: so many requests for completions are answered rightly before that.
        change: what is done to the tokens of an answer, or to the characters of its text where it has no tokens.
    """

    def __init__(self, behind: str) -> None:
        self.behind = behind.removesuffix("/v1")
        self.fault: Callable[[_Handler, bytes], None] | None = None
        self.good = 0
        self.change: Callable[[int, Any], Any] | None = None
        self.seen = 0  # tokens of all answers
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (_Handler,), {"of": self}))
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/v1"

    def changed(self, content: bytes) -> bytes:
        """A whole answer, or one that was streamed, with the changes."""
        if self.change is None:
            return content
        if not content.startswith(b"data:"):
            return json.dumps(self._event(json.loads(content))).encode()
        return re.sub(
            rb"(?m)^data: (\{.*\})$",
            lambda found: b"data: " + json.dumps(self._event(json.loads(found[1]))).encode(),
            content,
        )

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        for choice in event.get("choices", []):
            name = "token_ids" if choice.get("token_ids") else "text"
            found = []
            for one in choice.get(name) or ():
                found.append(self.change(self.seen, one) if self.change else one)
                self.seen += 1
            choice[name] = found if name == "token_ids" else "".join(found)
        return event


class _Handler(BaseHTTPRequestHandler):
    of: Proxy

    def do_GET(self) -> None:
        self.send(*self.asked(None))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.of.fault is not None:
            if self.of.good == 0:
                self.of.fault(self, body)
                return
            self.of.good -= 1
        status, kind, content = self.asked(body)
        self.send(status, kind, self.of.changed(content))

    def asked(self, body: bytes | None) -> tuple[int, str, bytes]:
        """What the server says."""
        request = urllib.request.Request(self.of.behind + self.path, body, {"Content-Type": "application/json"})
        try:
            with DIRECT.open(request, timeout=120) as answer:
                return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get("Content-Type", ""), error.read()

    def send(self, status: int, kind: str, content: bytes, length: int | None = None, **more: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *said: object) -> None:
        """Nothing."""


def stall(handler: _Handler, body: bytes) -> None:
    """Headers, and then nothing."""
    handler.send(200, "text/event-stream", b"", 10_000)
    time.sleep(30)


def close(handler: _Handler, body: bytes) -> None:
    """The connection ends in the middle of the answer."""
    status, kind, content = handler.asked(body)
    handler.send(status, kind, content[: len(content) // 2], len(content))
    handler.connection.shutdown(socket.SHUT_RDWR)


def redirect(handler: _Handler, body: bytes) -> None:
    """To another server."""
    handler.send(307, "text/plain", b"", Location="http://127.0.0.2:9/v1/completions")


def failing(handler: _Handler, body: bytes) -> None:
    """500, and a reason."""
    handler.send(500, "application/json", b'{"error": {"message": "CUDA out of memory"}}')


def drip(handler: _Handler, body: bytes) -> None:
    """A byte at a time, for ever."""
    handler.send(200, "text/event-stream", b"", 10_000)
    for _ in range(10_000):
        handler.wfile.write(b" ")
        time.sleep(0.05)


def lie(handler: _Handler, body: bytes) -> None:
    """Twice as many tokens as there are."""
    status, kind, content = handler.asked(body)
    doubled = re.sub(
        rb'"completion_tokens":\s*(\d+)', lambda found: b'"completion_tokens": %d' % (2 * int(found[1])), content
    )
    handler.send(status, kind, doubled)


FAULTS = [stall, close, redirect, failing, drip, lie]


@contextmanager
def before(url: str) -> Iterator[Proxy]:
    """A proxy in front of the server at `url`."""
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.http.shutdown()
        proxy.http.server_close()
