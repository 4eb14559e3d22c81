"""A server with an OpenAI-compatible API in front of our own engine: gpt-mini, alone or with gpt-nano as its draft.

It says who it is as vLLM or llama.cpp do, counts its passes as they do, streams a pass as a chunk, and has faults on
request.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from specbench.algorithm import decoding
from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.decoding import DecodingSpec
from specbench.algorithm.gamma import Constant
from specbench.compose.hydra_app import composed_config
from specbench.config.schema import RunConfig
from specbench.engine.session import Prompt
from specbench.experiment.run_parts import Parts, build_each, resolve
from specbench.loading.model_loader import ModelLoader
from specbench.sampling import Sampling

GAMMA = 3
STEP_S, PASS_S = 0.004, 0.006  # waited before each chunk of a stream, as a larger model would
WORDS = ["target=gpt-mini", "draft=gpt-nano", "dtype=float32", "device=cpu", "threads=1", "limit=1", "task=lm-mini"]


@cache
def parts() -> Parts:
    """The target and its draft, loaded once."""
    config = resolve(composed_config(RunConfig, WORDS, "run"))
    (found,) = build_each([config], lambda _: None, loader=ModelLoader())
    return found


class Standin:
    """One server.

    Attributes:
        drafts: whether it has a draft.
        engine: vllm | llamacpp | bare.
        change: what is done to the tokens of an answer.
        before: called with the number of a request before it is answered; it may sleep or raise.
        asked: the bodies of the requests.
        owner: who its list of models says it is.
        count: what it says of a number of tokens.
    """

    def __init__(self, drafts: bool, engine: str = "vllm") -> None:
        parts()  # here: Hydra composes one config at a time
        self.drafts, self.engine = drafts, engine
        self.owner: object = {"vllm": "vllm", "llamacpp": "llamacpp"}.get(engine, "somebody")
        self.change: Callable[[list[int]], list[int]] = list
        self.before: Callable[[int], None] = lambda number: None
        self.count: Callable[[int], object] = lambda tokens: tokens
        self.status = 0
        self.cut = False  # streams break off
        self.stopped: dict[str, object] = {}  # beside finish_reason: at what a completion ended
        self.asked: list[dict[str, Any]] = []
        self.counts = [0, 0, 0]
        self.at_position = [0] * GAMMA
        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (_Handler,), {"server_of": self}))
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/v1"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def decoded(self, asked: dict[str, Any]) -> tuple[list[list[int]], str]:
        """The tokens of each pass, and why the completion ended."""
        made = parts()
        prompt = asked.get("prompt")
        if prompt is None:
            text = "\n\n".join(one["content"] for one in asked["messages"])
            ids = made.vocabulary.prompt(text, "", 512).prefix
        else:
            ids = made.vocabulary.prompt(prompt, "", 512).prefix if isinstance(prompt, str) else tuple(prompt)
        sampling = Sampling(asked["temperature"])
        gamma = Constant(GAMMA if self.drafts else 0)
        spec = DecodingSpec(sampling, asked["max_tokens"], Verification(accept_exact, sampling), gamma)
        generator = torch.Generator().manual_seed(asked["seed"])
        with self.lock:  # one at a time
            if not self.drafts:
                tokens = decoding.autoregressive(made.target, Prompt((), ids), spec, generator).tokens
                chunks = [[token] for token in tokens]
            else:
                trace = decoding.speculative(made.target, made.draft, Prompt((), ids), spec, generator)
                tokens, chunks, place = trace.tokens, [], 0
                for one in trace.passes:
                    chunks.append(tokens[place : place + one.emitted])
                    place += one.emitted
                    self.counts = [a + b for a, b in zip(self.counts, (1, one.drafted, one.accepted), strict=True)]
                    for position in range(one.accepted):
                        self.at_position[position] += 1
                self.last = sum(one.drafted for one in trace.passes), sum(one.accepted for one in trace.passes)
        ended = tokens[-1] in made.target.eos_ids
        changed = self.change(tokens)
        place, found = 0, []
        for chunk in chunks:
            found.append(changed[place : place + len(chunk)])
            place += len(chunk)
        return found, "stop" if ended else "length"

    def page(self) -> str:
        names = ("drafts", "draft_tokens", "accepted_tokens")
        lines = [f'vllm:spec_decode_num_{n}_total{{model="m"}} {c}' for n, c in zip(names, self.counts, strict=True)]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{model="m",position="{place}"}} {count}'
            for place, count in enumerate(self.at_position)
        ]
        return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    server_of: Standin

    def do_GET(self) -> None:
        this = self.server_of
        pages: dict[str, object] = {"/v1/models": {"data": [{"id": "gpt-mini", "owned_by": this.owner}]}}
        if this.engine == "vllm":
            pages["/version"] = {"version": "0.0.1"}
        if this.engine == "llamacpp":
            pages["/props"] = {"build_info": "b1"}
        if self.path == "/metrics" and this.engine == "vllm" and this.drafts:
            self._answer(200, this.page().encode(), "text/plain")
        elif self.path in pages:
            self._answer(200, json.dumps(pages[self.path]).encode())
        else:
            self._answer(404, b"{}")

    def do_POST(self) -> None:
        this = self.server_of
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        this.asked.append(asked)
        this.before(len(this.asked))
        if this.status:
            self._answer(this.status, b'{"error": {"message": "out of order"}}')
            return
        chat = self.path.endswith("chat/completions")
        chunks, finish = this.decoded(asked)
        vocabulary = parts().vocabulary
        tokens = [token for chunk in chunks for token in chunk]
        more: dict[str, Any] = {"usage": {"completion_tokens": this.count(len(tokens))}}
        if this.engine == "llamacpp" and this.drafts:
            more["timings"] = {"draft_n": this.last[0], "draft_n_accepted": this.last[1]}
        ids = this.engine == "vllm" and asked.get("return_token_ids")

        def choice(text: str, part: list[int], end: str | None, streamed: bool) -> dict[str, Any]:
            inner: dict[str, Any] = {"text": text}
            if chat:
                inner = {"delta" if streamed else "message": {"content": text}}
            stopped = {} if end is None else this.stopped
            return {"choices": [{**inner, "finish_reason": end, **stopped, **({"token_ids": part} if ids else {})}]}

        if not asked["stream"]:
            self._answer(200, json.dumps({**choice(vocabulary.text(tokens), tokens, finish, False), **more}).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        said = ""
        for number in range(len(chunks)):
            whole = vocabulary.text([token for chunk in chunks[: number + 1] for token in chunk])
            last = number == len(chunks) - 1
            if this.cut and last:
                return
            time.sleep(PASS_S if this.drafts else STEP_S)
            self._event(choice(whole[len(said) :], chunks[number], finish if last else None, True))
            said = whole
        self._event({"choices": [], **more})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, content: object) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: object) -> None:
        pass


@contextmanager
def two(engine: str = "vllm") -> Iterator[tuple[Standin, Standin]]:
    """A server with a draft, and one without."""
    drafting, plain = Standin(True, engine), Standin(False, engine)
    try:
        yield drafting, plain
    finally:
        drafting.close()
        plain.close()


def one_in(often: int) -> Callable[[list[int]], list[int]]:
    """A fault: one token in `often`, counted over all answers, is another."""
    written = itertools.count(1)
    return lambda tokens: [(token + 1) % 4000 if next(written) % often == 0 else token for token in tokens]


def slow(seconds: float) -> Callable[[int], None]:
    """Each answer begins so much later."""
    return lambda number: time.sleep(seconds)
