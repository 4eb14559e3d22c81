"""A stand-in for the model hub on the loopback: repositories of models and data sets, and the faults of a real hub.

It answers the requests that `transformers`, `datasets` and `huggingface_hub` make of it: what a repository is, the
files in it, and the files themselves, whole or in ranges. HF_ENDPOINT must be its address before these are imported.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.servers import Server

NEWEST = "a" * 40


@dataclass
class Repository:
    """`files` by path. `fault`: 'gated', 'limited' (429), 'broken' (503) or 'cut' (weights end early)."""

    files: dict[str, bytes]
    commit: str = NEWEST
    fault: str | None = None


@dataclass
class Hub:
    """Repositories by 'models/OWNER/NAME' or 'datasets/OWNER/NAME', and the requests that were made."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    address: str = ""

    def model(self, name: str, folder: Path, **more: str) -> None:
        files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        self.repositories[f"models/{name}"] = Repository(files, **more)

    def dataset(self, name: str, files: dict[str, bytes], **more: str) -> None:
        self.repositories[f"datasets/{name}"] = Repository(files, **more)


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """`hub` on a free port of the loopback."""

    class Handler(_Handler):
        serves = hub

    server = Server(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class Outcome(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


# Retries of the libraries do not wait; `no space` is what the system says when a disk is full.
SESSION = """
import contextlib, errno, io, json, sys, time
from specbench.cli import main
time.sleep = lambda seconds: None
outcomes = []
for argv in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        if full := argv[0] == "no space":
            from huggingface_hub import file_download
            kept, argv = file_download.http_get, argv[1:]
            def http_get(*_, **__): raise OSError(errno.ENOSPC, "No space left on device")
            file_download.http_get = http_get
        code = main(argv)
        if full:
            file_download.http_get = kept
    outcomes.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(outcomes))
"""


def run_all(hub: Hub, home: Path, commands: list[list[str]]) -> list[Outcome]:
    """The outcome of each command line, all in one process whose hub is `hub`, with its cache in `home`."""
    environment = {
        **os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_TOKEN": "",
        "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SESSION], input=json.dumps(commands), env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [Outcome(*one) for one in json.loads(done.stdout.splitlines()[-1])]


class _Handler(BaseHTTPRequestHandler):
    serves: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer()

    def _answer(self) -> None:
        self.serves.requests.append(f"{self.command} {self.path}")
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(.*))?", path):
            kind, name, rest = found.groups()
            self._about(kind, name, rest or "")
        elif found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/(.+?)/(.+)", path):
            kind, name, revision, file = found.groups()
            self._file("datasets" if kind else "models", name, revision, file)
        else:
            self._error(404, "EntryNotFound")

    def _repository(self, kind: str, name: str, revision: str | None) -> Repository | None:
        """The repository, or None after an answer that says why not."""
        repository = self.serves.repositories.get(f"{kind}/{name}")
        if repository is None:
            self._error(401, "RepoNotFound", "Repository Not Found")
        elif repository.fault == "gated":
            self._error(403, "GatedRepo", f"Access to {kind} {name} is restricted")
        elif repository.fault in ("limited", "broken"):
            self._error({"limited": 429, "broken": 503}[repository.fault], "", "Too Many Requests")
        elif revision not in (None, "main", repository.commit):
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repository
        return None

    def _about(self, kind: str, name: str, rest: str) -> None:
        what, _, after = rest.partition("/")
        revision = (after.partition("/")[0] if what != "revision" else after) or None
        repository = self._repository(kind, name, revision)
        if repository is None:
            return
        if what in ("", "revision"):
            files = [{"rfilename": path, "size": len(content)} for path, content in repository.files.items()]
            self._json({"_id": "0", "id": name, "sha": repository.commit, "siblings": files, "private": False,
                        "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0})  # fmt: skip
        elif what == "tree":
            under = after.partition("/")[2].strip("/")
            entries = [self._entry(path, repository) for path in repository.files if path.startswith(under)]
            folders = {path.rpartition("/")[0] for path in repository.files if "/" in path}
            entries += [{"type": "directory", "path": one, "oid": "0" * 40, "size": 0} for one in sorted(folders)]
            missing = under and not any(path.startswith(f"{under}/") for path in repository.files)
            self._error(404, "EntryNotFound") if missing else self._json(entries)
        elif what == "paths-info":
            text = self.body.decode()
            asked = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text)["paths"]
            self._json([self._entry(path, repository) for path in asked if path in repository.files])
        else:
            self._error(404, "EntryNotFound")

    @staticmethod
    def _entry(path: str, repository: Repository) -> dict[str, object]:
        content = repository.files[path]
        return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def _file(self, kind: str, name: str, revision: str, path: str) -> None:
        repository = self._repository(kind, name, revision)
        if repository is None:
            return
        if path not in repository.files:
            self._error(404, "EntryNotFound", f"no {path}")
            return
        content = repository.files[path]
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": repository.commit,
                   "Accept-Ranges": "bytes"}  # fmt: skip
        status, part = 200, content
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(asked[1]), int(asked[2] or len(content) - 1)
            status, part = 206, content[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        cut = repository.fault == "cut" and path.endswith((".safetensors", ".bin", ".jsonl")) and self.command == "GET"
        self._send(status, part, headers, sent=len(part) // 2 if cut else None)

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, message: str = "") -> None:
        self._send(status, message.encode(), {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, content: bytes, headers: dict[str, str], sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:sent])
        if sent is not None:
            self.close_connection = True
