"""A chat template renders in a process of its own, which is ended when it takes too long.

A template comes with a checkpoint, and `transformers` renders it in a sandbox of Jinja, which keeps it from the machine
but not from looping for ever or computing 9**9**9, a single operation that no thread of this process can interrupt. The
process is started at the first conversation (about a second: it imports no torch) and renders all of them; it is not
forked from this one, whose memory would be copied page by page while prompts are timed. It runs this file.
"""

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

SECONDS = 10.0  # for one conversation
SECONDS_TO_START = 120.0  # the imports, on a busy machine
MEMORY = 4 * 2**30  # bytes of address space
LARGEST = 2**26  # characters of a rendered conversation


class _Process:
    """The process, and what it answers."""

    def __init__(self) -> None:
        place = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | place,
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._given: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        self.owner = os.getpid()
        self.receive(SECONDS_TO_START)

    def ask(self, asked: object) -> bytes:
        """The answer to one request. Raises TimeoutError, and OSError if the process has ended."""
        self._given.write(json.dumps(asked).encode() + b"\n")
        self._given.flush()
        return self.receive(SECONDS)

    def receive(self, seconds: float) -> bytes:
        """One line. Raises as `ask`."""
        ends, found = time.monotonic() + seconds, bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(self._answers, selectors.EVENT_READ)
            while not found.endswith(b"\n"):
                if not ready.select(max(0.0, ends - time.monotonic())):
                    raise TimeoutError
                piece = os.read(self._answers.fileno(), 2**20)
                if not piece:
                    raise OSError("the process that renders chat templates has ended")
                found += piece
        return bytes(found)

    def end(self) -> None:
        """End it, unless this is a fork of the process that started it."""
        if self.owner == os.getpid():
            self._process.kill()
            self._process.wait()
            for stream in (self._given, self._answers):
                with suppress(OSError):
                    stream.close()


_lock = threading.Lock()
_running: _Process | None = None


def _end() -> None:
    global _running
    if _running is not None:
        _running.end()
        _running = None


def render(template: str, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]) -> str:
    """A conversation in a chat template, up to where the answer begins.

    `variables` are the tokenizer's special tokens. Raises jinja2.TemplateError if the template rejects the
    conversation, fails, or takes longer than `SECONDS`.
    """
    from jinja2 import TemplateError

    from specbench import border

    global _running
    asked = {"template": template, "messages": list(messages), "variables": dict(variables)}
    with _lock:
        if _running is None:
            atexit.register(_end)
        if _running is None or _running.owner != os.getpid():
            _running = _Process()
        try:
            answer: dict[str, str] = border.parse(_running.ask(asked), dict[str, str])
        except border.Unreadable as error:
            raise TemplateError(f"what it writes is no text: {error}") from error
        except TimeoutError as error:
            _end()
            raise TemplateError(f"it takes longer than {SECONDS:g} s") from error
        except OSError as error:
            _end()
            raise TemplateError(f"it ends the process that renders it ({error})") from error
    if "error" in answer:
        raise TemplateError(answer["error"])
    return answer["text"]


def serve(asked: IO[str], answers: IO[str]) -> None:
    """Answer each line of `asked` with one line, until there is no more."""
    from transformers.utils.chat_template_utils import render_jinja_template

    answers.write("ready\n")
    answers.flush()
    for line in asked:
        one = json.loads(line)  # written by `render` of the process that started this one
        try:
            ((text,), _) = render_jinja_template(
                conversations=[one["messages"]], chat_template=one["template"], add_generation_prompt=True,
                **one["variables"],
            )  # fmt: skip
            found = {"text": text} if len(text) <= LARGEST else {"error": f"it writes more than {LARGEST} characters"}
        except Exception as error:  # whatever a template leads to
            kind = "" if type(error).__name__ == "TemplateError" else f"{type(error).__name__}: "
            found = {"error": f"{kind}{error or 'it fails'}".encode(errors="backslashreplace").decode()[:1000]}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def _main() -> None:
    with suppress(ImportError, ValueError, OSError):  # no such limit on this system, or a lower one already
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    serve(sys.stdin, answers)


if __name__ == "__main__":
    _main()
