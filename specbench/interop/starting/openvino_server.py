"""A small server for OpenVINO GenAI's Python pipeline: the API for completions, one request at a time.

OpenVINO's own model server is no Python package; this one is ours, and so named in records. It is run by the Python in
which `openvino_genai` is installed, which need not be ours, so it knows nothing but the standard library, numpy and
that package:

    python openvino_server.py '{"model": FOLDER, "port": 8000, "draft": FOLDER or null, "lookup": n-gram or 0, …}'

Answers have the token ids that were drawn (`token_ids`), and `/metrics` the counters of speculative decoding.
"""

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

PREFIX = "openvino_genai:spec_decode_num_"
Say = Callable[[list[int], str], None]  # new tokens, and their text


class Pipeline:
    """A pipeline with one kind of draft, or none, and what it has counted."""

    def __init__(self, options: dict[str, Any]) -> None:
        package: Any = import_module("openvino_genai")
        self.package = package
        scheduler = package.SchedulerConfig()
        scheduler.cache_size = options["cache_gb"]
        scheduler.enable_prefix_caching = False
        device = {
            "INFERENCE_PRECISION_HINT": options["precision"], "KV_CACHE_PRECISION": options["cache"],
            "INFERENCE_NUM_THREADS": options["threads"],
        }  # fmt: skip
        more: dict[str, Any] = {"scheduler_config": scheduler, **device}
        if options["draft"]:
            more["draft_model"] = package.draft_model(options["draft"], "CPU", **device)
        if options["lookup"]:
            more["prompt_lookup"] = True
        self.pipeline: Any = package.LLMPipeline(options["model"], "CPU", **more)
        self.tokenizer: Any = self.pipeline.get_tokenizer()
        self.options = options
        self.passes = self.drafted = self.accepted = 0
        self.turn = threading.Lock()

    def complete(self, asked: dict[str, Any], say: Say) -> dict[str, Any]:
        """The answer to a request of the API for completions; `say` gets tokens as they are decided."""
        options, prompt = self.options, asked["prompt"]
        if isinstance(prompt, str):
            read = self.tokenizer.encode(prompt).input_ids
        else:
            numpy: Any = import_module("numpy")
            read = import_module("openvino").Tensor(numpy.array([prompt], dtype=numpy.int64))
        config = self.package.GenerationConfig()
        config.max_new_tokens = asked.get("max_tokens", 16)
        config.eos_token_id = self.tokenizer.get_eos_token_id()
        ends = {config.eos_token_id, *options["ends"]}
        config.stop_token_ids = ends
        config.apply_chat_template = False
        config.ignore_eos = bool(asked.get("ignore_eos", False))
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            if name in asked:
                setattr(config, name, float(asked[name]))
        if (temperature := asked.get("temperature", 1.0)) > 0:
            config.do_sample, config.temperature = True, temperature
            config.top_p, config.min_p = asked.get("top_p", 1.0), asked.get("min_p", 0.0)
            config.top_k = top_k if (top_k := asked.get("top_k") or 0) > 0 else options["vocabulary"]
            config.rng_seed = (asked.get("seed") or 0) % 2**31
        if options["draft"] or options["lookup"]:
            config.num_assistant_tokens = options["gamma"]
        if options["lookup"]:
            config.max_ngram_size = options["lookup"]
        written = list[int]()  # tokens of the prefill and of each pass

        def hand_on(tokens: list[int], text: str) -> None:
            written.append(len(tokens))
            say(tokens, text)

        with self.turn:
            found = self.pipeline.generate(read, config, self._streamer(hand_on))
            self._count(found, written)
        tokens = [int(token) for token in found.tokens[0]]
        # "a stop" is an end of the text that the pipeline leaves in.
        ended = len(tokens) < config.max_new_tokens or tokens[-1] in ends
        choice = {
            "index": 0, "text": self.tokenizer.decode(tokens), "finish_reason": "stop" if ended else "length",
            "token_ids": tokens, "logprobs": None,
        }  # fmt: skip
        count = int(read.shape[-1])
        usage = {"prompt_tokens": count, "completion_tokens": len(tokens), "total_tokens": count + len(tokens)}
        return {"object": "text_completion", "model": options["name"], "choices": [choice], "usage": usage}

    def _streamer(self, say: Say) -> Any:
        """A streamer that hands the pipeline's tokens to `say` with their text."""
        package, decode = self.package, self.tokenizer.decode

        class Streamer(package.StreamerBase):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.tokens = list[int]()

            def write(self, token: Any) -> Any:
                new = [int(one) for one in token] if isinstance(token, list) else [int(token)]
                before = decode(self.tokens) if self.tokens else ""
                self.tokens += new
                say(new, decode(self.tokens)[len(before) :])
                return package.StreamingStatus.RUNNING

            def end(self) -> None:
                """Nothing is held back."""

        return Streamer()

    def _count(self, found: Any, written: list[int]) -> None:
        """Add the passes of a completion, of each of which the pipeline hands out accepted tokens and one more.

        If a model drafts, the package counts drafted and accepted tokens, except in a pass that the end of the text
        cuts; tokens accepted there were also drafted.
        """
        accepted = sum(written[1:]) - len(written[1:])
        self.passes += len(written[1:])
        self.accepted += accepted
        if (told := getattr(found, "extended_perf_metrics", None)) is not None:
            self.drafted += told.get_num_draft_tokens() + accepted - told.get_num_accepted_tokens()

    def metrics(self) -> str:
        """The page /metrics; prompt lookup does not tell how many tokens it drafted."""
        counted = {"drafts": self.passes, "accepted_tokens": self.accepted}
        if self.options["draft"]:
            counted["draft_tokens"] = self.drafted
        if not self.options["draft"] and not self.options["lookup"]:
            return ""
        lines = [f"# TYPE {PREFIX}{name}_total counter\n{PREFIX}{name}_total {n}" for name, n in counted.items()]
        return "\n".join(lines) + "\n"


def handler(pipeline: Pipeline) -> type[BaseHTTPRequestHandler]:
    """A handler that answers requests with `pipeline`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """The pages that a client of such a server asks for."""
            if self.path == "/health":
                self.answer(200, b"{}")
            elif self.path == "/metrics":
                self.answer(200, pipeline.metrics().encode(), "text/plain")
            elif self.path == "/engine":
                self.answer(200, json.dumps({"version": pipeline.package.__version__}).encode())
            elif self.path == "/v1/models":
                model = {"id": pipeline.options["name"], "object": "model", "owned_by": "OpenVINO GenAI"}
                self.answer(200, json.dumps({"object": "list", "data": [model]}).encode())
            else:
                self.answer(404, b'{"error": {"message": "no such page"}}')

        def do_POST(self) -> None:
            """A completion, whole or in a stream."""
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                if self.path != "/v1/completions":
                    raise LookupError("only /v1/completions")
                asked = json.loads(body)
                if asked.get("stream"):
                    self.stream(asked)
                else:
                    self.answer(200, json.dumps(pipeline.complete(asked, lambda tokens, text: None)).encode())
            except Exception as error:  # whatever the package raises; the client reads it
                self.answer(400, json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}).encode())

        def stream(self, asked: dict[str, Any]) -> None:
            """Events as they come; the last has the reason of the end, and `usage`. Ends the connection."""
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()

            def send(event: object) -> None:
                self.wfile.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())

            def say(tokens: list[int], text: str) -> None:
                send({"choices": [{"index": 0, "text": text, "token_ids": tokens, "finish_reason": None}]})

            try:
                whole = pipeline.complete(asked, say)
            except Exception as error:  # whatever the package raises; the client reads it
                send({"error": {"message": f"{type(error).__name__}: {error}"}})
                return
            (choice,) = whole["choices"]
            end = {"index": 0, "text": "", "token_ids": [], "finish_reason": choice["finish_reason"]}
            send({"choices": [end], "usage": whole["usage"]})
            send("[DONE]")

        def answer(self, code: int, content: bytes, kind: str = "application/json") -> None:
            """Send a page."""
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler


def main(options: dict[str, Any]) -> None:
    """Serve until the process is ended."""
    pipeline = Pipeline(options)
    ThreadingHTTPServer(("127.0.0.1", options["port"]), handler(pipeline)).serve_forever()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
