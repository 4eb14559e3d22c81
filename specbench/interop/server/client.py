"""One request to a server and its answer, streamed or whole, with the times at which tokens came.

The server's counts are compared with the tokens that it sends: an answer whose counts contradict its own tokens is no
measurement. Every failure is one line that names the server (`interop.serving.completions`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench import border
from specbench.border import Unreadable
from specbench.config.keys import MAX_GAMMA
from specbench.errors import MachineError, UserError, first_line
from specbench.interop.certify.outputs import STOPPED
from specbench.interop.server.dialect import LLAMA_CPP, OWNERS, PLAIN, SGLANG, VLLM, Dialect, counts_of, settings
from specbench.interop.serving.completions import Completions
from specbench.records.served import Answer, DraftCounts
from specbench.sampling import Sampling
from specbench.tasks.row_files import Message

LONGEST_NAME = 80  # characters that are recorded
LONGEST_EVENT = 2**20  # bytes of a line of a stream


@dataclass(frozen=True)
class Asked:
    """A prompt as it is sent: token ids, text, or messages for the server's chat template."""

    ids: Sequence[int] | None = None
    text: str | None = None
    messages: Sequence[Message] = ()

    def body(self) -> dict[str, object]:
        """The field of a request that holds the prompt."""
        if self.messages:
            return {"messages": [dict(one) for one in self.messages]}
        return {"prompt": list(self.ids) if self.ids is not None else self.text}


@dataclass(frozen=True)
class Identity:
    """Who a server says it is."""

    engine: str
    model: str
    dialect: Dialect


class Client(Completions):
    """A server that is asked one request after another, from any number of threads.

    Attributes:
        dialect: of its engine, once `identify` has asked.
        streams: whether answers are streamed.
        penalties: settings that `Sampling` does not hold, by name.
        counts_itself: whether its answers have counts of their own, so that `/metrics` need not be read.
    """

    dialect: Dialect = PLAIN
    streams = True
    penalties: Mapping[str, object] = {}
    counts_itself = False

    def identify(self) -> Identity:
        """Ask for engine, version and model. Raises UserError if there is no list of models."""
        listed = self._get(f"{self.url}/models")
        models = [one for one in _list(listed.get("data")) if isinstance(one, dict) and isinstance(one.get("id"), str)]
        if not models:
            raise UserError(f"{self.name}: lists no model; does the address end in /v1?")
        names = [one["id"] for one in models]
        if self.model and self.model not in names:
            raise UserError(f"model={self.model}: {self.name} lists {', '.join(names[:5])}")
        first = next((one for one in models if one["id"] == self.model), models[0])
        self.model = first["id"]
        root = self.url.removesuffix("/v1")
        self.dialect = OWNERS.get(str(first.get("owned_by")), PLAIN)
        version = ""
        for page, name, dialect in (
            ("version", "version", VLLM), ("props", "build_info", LLAMA_CPP), ("get_server_info", "version", SGLANG),
        ):  # fmt: skip
            if self.dialect not in (PLAIN, dialect):
                continue
            said = self._get(f"{root}/{page}", optional=True).get(name)
            if version := _named(said):
                self.dialect = dialect
                break
        name = self.dialect.name or _named(first.get("owned_by")) or "unknown engine"
        shown = Path(self.model).name if self.model.startswith("/") else self.model  # a file of the server's machine
        return Identity(f"{name} {version}".strip(), _named(shown) or "unknown model", self.dialect)

    def _get(self, address: str, optional: bool = False) -> dict[str, Any]:
        """The JSON object at an address; with `optional` an empty one if there is none."""
        try:
            with self.answered(address) as answer:
                return self.parsed(answer.read())
        except (UserError, MachineError):
            if not optional:
                raise
            return {}

    def ask(self, prompt: Asked, tokens: int, sampling: Sampling, seed: int) -> Answer:
        """At most `tokens` tokens after `prompt`.

        Raises:
            UserError: the answer is not of this API, or contradicts itself.
            MachineError: none came back in time.
        """
        body: dict[str, object] = {
            "model": self.model, **prompt.body(), "max_tokens": tokens, "seed": seed,
            **settings(self.dialect, sampling, self.penalties), "stream": self.streams,
        }  # fmt: skip
        if self.streams:
            body["stream_options"] = {"include_usage": True}
        address = f"{self.url}/{'chat/completions' if prompt.messages else 'completions'}"
        found = _Collected()
        began = self.now()
        with self.answered(address, body) as answer:
            if "text/event-stream" in str(answer.headers.get("Content-Type", "")):
                for event in self._events(answer):
                    found.add(self._object(event), self.now() - began)
                found.require_end(self.name)
            else:
                found.add(self.parsed(answer.read()), None)
            seconds = self.now() - began
        return found.answer(self.name, tokens, seconds)

    def _events(self, answer: Any) -> Iterator[bytes]:
        """The data of a stream's events, up to its end."""
        while line := answer.readline(LONGEST_EVENT):
            if not line.endswith(b"\n"):
                raise UserError(f"{self.name}: a line of the stream is longer than {LONGEST_EVENT} bytes, or cut short")
            name, _, data = line.rstrip(b"\r\n").partition(b":")
            if name != b"data":
                continue
            if data.strip() == b"[DONE]":
                return
            yield data

    def _object(self, event: bytes) -> dict[str, Any]:
        try:
            found: dict[str, Any] = border.parse(event, dict[str, Any])
        except Unreadable as error:
            raise UserError(f"{self.name}: an event of the stream is not a JSON object ({error})") from error
        return found

    def draft_counts(self) -> DraftCounts | None:
        """The counters of `/metrics`; None if the server shows none."""
        found = self.counts()
        if found is None:
            return None
        return DraftCounts(found.drafted, found.accepted, found.passes, at_position=list(found.at_position))


@dataclass
class _Collected:
    """The content of an answer's events, or of its one object."""

    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    first_ids: int = 0
    finish: str | None = None
    stop: str | int | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    counts: DraftCounts | None = None
    counted_by: str | None = None
    is_answer: bool = False
    error: str | None = None

    def add(self, said: Mapping[str, Any], at: float | None) -> None:
        """Take in an event that came `at` seconds after the request, or a whole answer."""
        if "error" in said:
            told = said["error"]
            self.error = str(told.get("message", told) if isinstance(told, Mapping) else told)
        if isinstance(usage := said.get("usage"), Mapping):
            self.usage = usage
        if (counts := counts_of(said)) is not None:
            self.counts, self.counted_by = counts
        choices = _list(said.get("choices"))
        if not choices or not isinstance(choices[0], Mapping):
            return
        choice = choices[0]
        inner = choice.get("delta", choice.get("message", choice))
        if not isinstance(inner, Mapping):
            return
        self.is_answer = True
        pieces = [inner.get(name) for name in ("reasoning_content", "reasoning", "content", "text")]
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        ids = [one for one in _list(choice.get("token_ids")) if isinstance(one, int) and not isinstance(one, bool)]
        self.text.append(text)
        self.ids += ids
        if isinstance(finish := choice.get("finish_reason"), str):
            self.finish = finish
        for name in STOPPED:
            if isinstance(stop := choice.get(name), str | int) and not isinstance(stop, bool):
                self.stop = stop
        if at is not None and (text or ids):
            self.first_ids = self.first_ids or len(ids)
            self.arrivals.append(at)

    def require_end(self, name: str) -> None:
        """Raises MachineError if a stream broke off before its answer ended."""
        if self.finish is None and self.error is None:
            raise MachineError(
                f"{name}: the stream broke off after {len(self.arrivals)} pieces; is the server at work?"
            )

    def answer(self, name: str, most: int, seconds: float) -> Answer:
        """The whole answer. Raises UserError if it is no answer, or if its counts contradict the tokens received."""
        if self.error is not None:
            raise MachineError(f"{name}: the server answers: {first_line(RuntimeError(self.error))}")
        if not self.is_answer:
            raise UserError(f"{name}: the answer has no choices[0] with a text; is it the API?")
        counted = self.usage.get("completion_tokens", len(self.ids) or None)
        if isinstance(counted, bool) or not isinstance(counted, int) or not 0 <= counted <= most:
            raise UserError(
                f"{name}: the answer's usage.completion_tokens is {json.dumps(counted)}, not a count up to "
                f"max_tokens={most}; without it no token can be timed"
            )
        if self.ids and len(self.ids) != counted:
            raise UserError(f"{name}: counts {counted} tokens and sends {len(self.ids)} ids; its counts are wrong")
        if len(self.arrivals) > counted + 1:
            raise UserError(f"{name}: counts {counted} tokens and streams {len(self.arrivals)} pieces of text")
        # Some engines count a pass before they look for the end of the text in it.
        if self.counts is not None and not self.counts.accepted <= min(self.counts.drafted, counted + MAX_GAMMA):
            raise UserError(
                f"{name}: counts {self.counts.accepted} accepted of {self.counts.drafted} drafted tokens in a text of "
                f"{counted}; these counts contradict each other"
            )
        streamed = len(self.arrivals) > 0
        return Answer(
            counted, seconds, self.arrivals[0] if streamed else None, "".join(self.text), self.ids or None, self.finish,
            max(1, self.first_ids), self.arrivals, self.counts, self.counted_by, self.stop,
        )  # fmt: skip


def _named(value: object) -> str:
    """A name that a server gives, as a line may hold it: '' if it is none."""
    text = value if isinstance(value, str) else ""
    return "".join(one if one.isprintable() else " " for one in text)[:LONGEST_NAME].strip()


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
