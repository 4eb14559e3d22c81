"""Requests to a server with an OpenAI-compatible API, timed from outside: whole completions, and counts of `/metrics`.

Every failure is one line that names the key: `url` or `draft_url`, `timeout`. A request ends after `timeout` seconds in
all, however slowly the server sends: `urllib` bounds only single reads, so an answer is read from a socket whose
timeout is the remaining time (`_Bounded`).
"""

import contextlib
import http.client
import io
import json
import socket
import time
import urllib.request
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from specbench import border
from specbench.border import Unreadable
from specbench.errors import MachineError, UserError, first_line
from specbench.interop.readings.document import Document
from specbench.interop.readings.prometheus import FAMILY, NAMES, samples
from specbench.sampling import Sampling

PREFIXES = ("vllm:", "llamacpp:", "openvino_genai:")  # of servers that count passes
LARGEST = 64 * 2**20  # bytes of an answer, its headers included
NOT_THERE = 501  # the answer of llama.cpp's server for /metrics if it was started without --metrics


class _Request(urllib.request.Request):
    """A request with the time by which it must be answered, on `time.monotonic`'s clock."""

    ends = float("inf")

    def left(self) -> float:
        """Seconds until then. Raises TimeoutError after it."""
        seconds = self.ends - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds


class _Bounded(io.RawIOBase):
    """The bytes that a socket receives until a time, at most `LARGEST`."""

    def __init__(self, connected: socket.socket, request: _Request) -> None:
        self._socket, self._request, self._room = connected, request, LARGEST
        self._file = connected.makefile("rb", 0)  # holds the socket open, as http.client expects of its file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, as streams do."""
        self._socket.settimeout(self._request.left())
        count = self._file.readinto(buffer) or 0
        self._room -= count
        if self._room < 0:
            raise http.client.HTTPException(f"an answer of more than {LARGEST // 2**20} MiB")
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _bounded(request: _Request) -> type[http.client.HTTPResponse]:
    """The class of the answer to `request`."""

    class Answer(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *given: Any, **named: Any) -> None:
            super().__init__(sock, *given, **named)
            self.fp.close()
            self.fp = io.BufferedReader(_Bounded(sock, request))

    return Answer


class _Http(urllib.request.HTTPHandler):
    """Connections whose answers are bounded."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connecting(http.client.HTTPConnection, req), req)


class _Https(urllib.request.HTTPSHandler):
    """Connections whose answers are bounded."""

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connecting(http.client.HTTPSConnection, req), req, context=self._context)  # type: ignore[attr-defined]


def _connecting(kind: type[http.client.HTTPConnection], request: urllib.request.Request) -> Any:
    assert isinstance(request, _Request)
    answer = _bounded(request)

    def connect(host: str, **given: Any) -> http.client.HTTPConnection:
        connection = kind(host, **{**given, "timeout": request.left()})
        connection.response_class = answer
        return connection

    return connect


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to the server that was asked: the key is not for another."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """The request of a redirect. Raises UserError if it leads to another server."""
        asked, other = _origin(req.full_url), _origin(newurl)
        if asked != other:
            raise UserError(
                f"{req.full_url}: redirects to another server, {other[0]}://{other[1]}:{other[2]}, which is not sent "
                "the request; give the address that answers"
            )
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is None:
            return None
        again = _Request(made.full_url, made.data, made.headers, made.origin_req_host, made.unverifiable)
        again.method = made.get_method()
        if isinstance(req, _Request):
            again.ends = req.ends
        return again


OPENER = urllib.request.build_opener(_SameServer, _Http, _Https)


def _origin(address: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of an address."""
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


@dataclass(frozen=True)
class Counts:
    """A server's counts since it started: passes, drafted tokens, accepted tokens, and these by position if known."""

    passes: int
    drafted: int
    accepted: int
    at_position: tuple[int, ...] = ()

    def since(self, before: "Counts") -> "Counts":
        earlier = (*before.at_position, *[0] * (len(self.at_position) - len(before.at_position)))
        return Counts(
            self.passes - before.passes, self.drafted - before.drafted, self.accepted - before.accepted,
            tuple(now - then for now, then in zip(self.at_position, earlier, strict=False)),
        )  # fmt: skip


@dataclass(frozen=True)
class Completion:
    """The tokens that `usage` counts, the seconds from the request to the whole answer, and the text."""

    tokens: int
    seconds: float
    text: Hashable


class Completions:
    """`POST {url}/completions` with prompts as token ids, one request at a time.

    Args:
        url: up to and with /v1.
        model: as the server calls it.
        key: what errors call `url`.
        timeout: seconds until a request without a whole answer is given up.
        token: sent as `Authorization: Bearer`, if the server asks for it.
        now: seconds on a clock.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str = "url",
        timeout: float = 600,
        token: str | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """A client of the API at `url`. Raises UserError if `url` is not an address, or `timeout` is not above 0."""
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits:
            raise UserError(f"{key}={url}: is not an address; give one like http://127.0.0.1:8000/v1")
        if not timeout > 0:
            raise UserError(f"timeout={timeout:g}: must be above 0")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UserError(f"{key}={url}: the server's key has a character that no header may hold; give only the key")
        self.url, self.model, self.now = url.rstrip("/"), model, now
        self.name = f"{key}={url}"
        self._timeout, self._token = timeout, token

    def complete(self, prompt: Sequence[int], tokens: int, sampling: Sampling, seed: int) -> Completion:
        """At most `tokens` tokens after `prompt`. Raises UserError or MachineError if none come back."""
        asked = {
            "model": self.model, "prompt": list(prompt), "max_tokens": tokens, "temperature": sampling.temperature,
            "seed": seed, "stream": False,
        }  # fmt: skip
        if sampling.top_p is not None:
            asked["top_p"] = sampling.top_p
        began = self.now()
        content = self._request(f"{self.url}/completions", asked)
        seconds = self.now() - began
        answer = self.parsed(content)
        try:
            text = answer["choices"][0]["text"]
        except (KeyError, IndexError, TypeError):
            text = None
        if not isinstance(text, str):
            raise UserError(f"{self.name}: the answer has no choices[0].text; is it the API for completions?")
        usage = answer.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if isinstance(counted, bool) or not isinstance(counted, int) or not 0 <= counted <= tokens:
            raise UserError(
                f"{self.name}: the answer's usage.completion_tokens is {json.dumps(counted)}, not a count up to "
                f"max_tokens={tokens}; without it no token can be timed"
            )
        return Completion(counted, seconds, text)

    def counts(self) -> Counts | None:
        """The counters of speculative decoding, summed over models; None if the server shows none.

        Raises UserError for a damaged page.
        """
        page = f"{self.url.removesuffix('/v1')}/metrics"
        try:
            document = Document.of_text(Path("/metrics"), self._request(page).decode("utf-8", "replace"))
        except UserError:  # many servers have no such page
            return None
        for prefix in PREFIXES:
            try:
                page_of = samples(document, prefix)
            except UserError as error:
                raise UserError(f"{self.name}: {error}") from error
            found, places = page_of.by_name, page_of.by_position
            if all(FAMILY + name in found for name in NAMES.values()):
                passes, drafted, accepted = (round(found[FAMILY + name]) for name in NAMES.values())
                return Counts(passes, drafted, accepted, tuple(round(places[place]) for place in sorted(places)))
        return None

    def _request(self, address: str, body: object = None) -> bytes:
        with self.answered(address, body) as answer:
            content: bytes = answer.read()
            return content

    @contextlib.contextmanager
    def answered(self, address: str, body: object = None) -> Iterator[Any]:
        """The answer to a request, to be read within the context. Raises UserError or MachineError, also within."""
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = _Request(address, data, headers)
        request.ends = time.monotonic() + self._timeout
        try:
            with OPENER.open(request, timeout=self._timeout) as answer:
                if (answer.length or 0) > LARGEST:
                    raise UserError(f"{self.name}: an answer of {answer.length} bytes; is it the API?")
                yield answer
        except urllib.error.HTTPError as error:
            kind = UserError if error.code < 500 or error.code == NOT_THERE else MachineError
            raise kind(f"{self.name}: the server answers HTTP {error.code}: {_reason(error)}") from error
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(cause, TimeoutError):
                raise MachineError(
                    f"{self.name}: no answer in timeout={self._timeout:g} s; raise it, or see whether the server works"
                ) from error
            if isinstance(cause, ConnectionRefusedError):
                raise UserError(f"{self.name}: connection refused; start the server, or give its address") from error
            said = first_line(cause) if isinstance(cause, Exception) else str(cause)
            raise MachineError(f"{self.name}: the connection failed ({said}); is the server at work?") from error
        except (UserError, MachineError):
            raise
        except (ValueError, OverflowError, MemoryError) as error:
            # What http.client and urllib make of lengths, chunks and addresses that are none.
            raise UserError(f"{self.name}: the answer is no HTTP ({first_line(error)}); is it the API?") from error

    def parsed(self, content: bytes) -> dict[str, Any]:
        """A JSON object. Raises UserError for anything else."""
        try:
            found: dict[str, Any] = border.parse(content, dict[str, Any])
        except Unreadable as error:
            raise UserError(
                f"{self.name}: the answer is not a JSON object ({error}); does the address end in /v1?"
            ) from error
        return found


def _reason(error: urllib.error.HTTPError) -> str:
    """The server's own message, or the name of the status code."""
    try:
        told = border.parse(error.read(LARGEST), dict[str, Any])
        told = told.get("error", told)
        said = str(told.get("message", "") if isinstance(told, dict) else told).strip()
    except (OSError, http.client.HTTPException, ValueError, OverflowError, MemoryError):
        said = ""
    return (said or str(error.reason)).splitlines()[0][:200]
