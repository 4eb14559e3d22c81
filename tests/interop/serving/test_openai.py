"""A server with an OpenAI-compatible API, timed from outside: what it counts and what it takes come back as they were,
and each failure is one line."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import torch

from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.errors import MachineError, UserError
from specbench.interop.serving.completions import Completions
from specbench.interop.serving.engine import Engine, prove
from specbench.interop.serving.openai import OpenAIServer
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.servers import Server

SIZE, GAMMA = 64, 3
PROMPT = Prompt((), (5, 9, 12, 30))
PREFILL, STEP, PASS = 0.5, 1.0, 1.25  # seconds on the server's clock


class Small:
    """A server that decodes with our engine, with a draft under /drafts; time passes on its clock as it says."""

    def __init__(self) -> None:
        self.target, other = (with_engine("eager", network("llama", seed=5), SIZE, frozenset()) for _ in "ab")
        with torch.no_grad():
            for weights in other.network.parameters():
                weights += 0.02 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(1))
        self.draft = ModelDraft(other, SIZE)
        self.clock = 0.0
        self.counts = [0, 0, 0]
        self.asked: list[dict[str, Any]] = []
        self.status, self.content = 200, b""  # said in the place of an answer
        self.metrics = True
        self.redirect = ""
        self.lossy = False
        self.others = 0  # accepted tokens of other requests, with each of ours
        self.hold = threading.Event()
        self.hold.set()
        handler = type("Handler", (Handler,), {"small": self})
        self.http = Server(("127.0.0.1", 0), handler)
        self.http.daemon_threads = False  # closing waits for the last answer
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.hold.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def address(self, drafting: bool) -> str:
        return f"http://127.0.0.1:{self.http.server_port}{'/drafts' if drafting else ''}/v1"

    def now(self) -> float:
        return self.clock

    def completion(self, asked: dict[str, Any], drafting: bool) -> bytes:
        """The answer, as our engine decodes."""
        self.asked.append(asked)
        generator = torch.Generator().manual_seed(asked["seed"])
        prompt, sampling = Prompt((), tuple(asked["prompt"])), Sampling(asked["temperature"])
        most = asked["max_tokens"]
        self.clock += PREFILL
        if drafting:
            trace = speculative(
                self.target, self.draft, prompt, gamma=GAMMA, sampling=sampling, max_new_tokens=most,
                generator=generator,
            )  # fmt: skip
            drafted, accepted = (sum(getattr(one, name) for one in trace.passes) for name in ("drafted", "accepted"))
            for place, more in enumerate((len(trace.passes), drafted, accepted + self.others)):
                self.counts[place] += more
            self.clock += PASS * len(trace.passes)
        else:
            trace = autoregressive(self.target, prompt, sampling=sampling, max_new_tokens=most, generator=generator)
            self.clock += STEP * len(trace.tokens)
        if drafting and self.lossy:
            trace.tokens[3] += 1
        usage = {"completion_tokens": len(trace.tokens)}
        return json.dumps({"choices": [{"text": " ".join(map(str, trace.tokens))}], "usage": usage}).encode()

    def page(self) -> bytes:
        names = ("drafts", "draft_tokens", "accepted_tokens")
        lines = [f'vllm:spec_decode_num_{n}_total{{model="m"}} {c}' for n, c in zip(names, self.counts, strict=True)]
        return "\n".join(lines).encode()


class Handler(BaseHTTPRequestHandler):
    small: Small

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.small.hold.wait(10)
        content = self.small.content or self.small.completion(asked, self.path.startswith("/drafts"))
        self.answer(self.small.status, content)

    def do_GET(self) -> None:
        shown = self.small.metrics and self.path == "/drafts/metrics"
        self.answer(200 if shown else 404, self.small.page() if shown else b"")

    def answer(self, status: int, content: bytes) -> None:
        if self.small.redirect and not self.path.endswith("elsewhere"):
            status = 302
        self.send_response(status)
        self.send_header("Location", self.small.redirect)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Small()
    yield server
    server.close()


def engine_of(small: Small, sampling: Sampling | None = None) -> OpenAIServer:
    plain = Completions(small.address(False), "m", now=small.now, timeout=10)
    drafting = Completions(small.address(True), "m", key="draft_url", now=small.now, timeout=10)
    return OpenAIServer(plain, drafting, GAMMA, sampling or Sampling(), 24)


def test_a_step_is_what_longer_completions_take_beyond_one_token(small: Small) -> None:
    engine: Engine = engine_of(small)
    steps = engine.time_steps(PROMPT, 9)
    assert steps == pytest.approx([PREFILL + STEP] + [STEP] * 8)
    assert engine.time_steps(PROMPT, 1) == pytest.approx([PREFILL + STEP])
    assert {one["temperature"] for one in small.asked} == {0.0} and small.asked[0]["prompt"] == [5, 9, 12, 30]


def test_passes_are_those_that_the_server_counts(small: Small) -> None:
    """Their number, time, and drafted and accepted tokens, as our own trace of the same text has them."""
    engine = engine_of(small)
    ours = speculative(
        small.target, small.draft, PROMPT, gamma=GAMMA, sampling=Sampling(), max_new_tokens=24,
        generator=torch.Generator(),
    )  # fmt: skip
    first, *others = engine.time_verifications(PROMPT, GAMMA, 24)
    assert first.first and first.verify_s == pytest.approx(PREFILL + PASS)
    assert len(others) == len(ours.passes) - 1  # the server takes the first token from a pass of its own
    assert [one.verify_s for one in others] == pytest.approx([PASS] * len(others))
    assert sum(one.drafted for one in others) == sum(one.drafted for one in ours.passes)
    assert sum(one.accepted for one in others) == sum(one.accepted for one in ours.passes) > 0
    assert not any(one.draft_s or one.accept_s or one.first for one in others)
    assert len(engine.time_verifications(PROMPT, GAMMA, 1)) == 1


@pytest.mark.full
def test_whole_texts_are_timed_and_alike(small: Small) -> None:
    engine = engine_of(small)
    plain, helped = engine.generate(PROMPT, None, 0), engine.generate(PROMPT, GAMMA, 0)
    assert plain.text == helped.text and plain.tokens == helped.tokens == 24
    assert plain.seconds == pytest.approx(PREFILL + 24 * STEP)
    per_token = [engine.seconds_per_token(PROMPT, gamma, 24) for gamma in (None, GAMMA)]
    assert per_token[0] == pytest.approx(STEP) and per_token[1] < STEP
    prompts = [PROMPT, Prompt((), (7, 8, 9))]
    proof = prove({"server": engine}, [("server", GAMMA)], prompts)["server", GAMMA]
    seconds = [sum(engine.generate(one, gamma, 0).seconds for one in prompts) for gamma in (None, GAMMA)]
    assert proof.equal_share == 1.0 and proof.speedup.value == pytest.approx(seconds[0] / seconds[1])


def test_sampled_texts_follow_their_seed(small: Small) -> None:
    engine = engine_of(small, Sampling(1.0, top_p=0.9))
    texts = [engine.generate(PROMPT, None, seed).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert small.asked[0]["top_p"] == 0.9


@pytest.mark.parametrize(
    ("status", "content", "kind", "said"),
    [
        (404, b'{"error": {"message": "no model m"}}', UserError, "the server answers HTTP 404: no model m"),
        (503, b"", MachineError, "the server answers HTTP 503: Service Unavailable"),
        (200, b"<html>", UserError, "the answer is not a JSON object"),
        (200, b'{"choices": []}', UserError, "the answer has no choices"),
        (200, b'{"choices": [{"text": "a"}]}', UserError, "usage.completion_tokens is null"),
        (200, b'{"choices": [{"text": "a"}], "usage": {"completion_tokens": 99}}', UserError, "is 99, not a count"),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_line(
    small: Small, status: int, content: bytes, kind: type[Exception], said: str
) -> None:
    small.status, small.content = status, content
    with pytest.raises(kind, match="^url=http://127.0.0.1:") as caught:
        engine_of(small).time_steps(PROMPT, 4)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_the_key_does_not_follow_a_redirect_to_another_server(small: Small) -> None:
    """Only a redirect on the server that was asked is followed."""
    seen: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *values: object) -> None:
            pass

    other = Server(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=other.serve_forever, args=(0.01,))
    thread.start()
    try:
        small.redirect = f"http://127.0.0.1:{other.server_port}/v1/completions"
        with pytest.raises(UserError, match="redirects to another server") as caught:
            Completions(small.address(False), "m", token="secret").complete((5,), 1, Sampling(), 0)
        assert "secret" not in str(caught.value) and not seen
        assert Completions(small.address(True), "m", token="secret").counts() is None and not seen
        small.redirect = small.address(False) + "/elsewhere"
        with pytest.raises(UserError, match="HTTP 404"):  # asked again, at the same server
            Completions(small.address(False), "m", token="secret").complete((5,), 1, Sampling(), 0)
    finally:
        other.shutdown()
        thread.join()
        other.server_close()


def test_of_a_client_that_has_gone_the_server_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    server = Small()
    server.hold.clear()
    server.content = b" " * 2**24  # more than a socket takes that nobody reads
    with pytest.raises(MachineError):
        Completions(server.address(False), "m", timeout=0.1).complete((5,), 1, Sampling(), 0)
    server.close()
    assert capfd.readouterr().err == ""


@pytest.mark.full
def test_gamma_is_compared_with_what_the_server_counts(small: Small) -> None:
    """A server that drafts 3 tokens per pass is not timed as one that drafts 5, and not as one that drafts 2."""
    for gamma in (2, 5):
        plain = Completions(small.address(False), "m", now=small.now)
        drafting = Completions(small.address(True), "m", key="draft_url", now=small.now)
        for work in (
            lambda engine, g: engine.time_verifications(PROMPT, g, 24),
            lambda engine, g: prove({"server": engine}, [("server", g)], [PROMPT]),
        ):
            with pytest.raises(UserError, match=rf"^draft_url=.* tokens per pass by its /metrics, and gamma={gamma}"):
                work(OpenAIServer(plain, drafting, gamma, Sampling(), 24), gamma)


@pytest.mark.full
def test_no_speedup_where_completions_differ(small: Small) -> None:
    engine = engine_of(small)
    assert prove({"server": engine}, [("server", GAMMA)], [PROMPT])["server", GAMMA].speedup is not None
    small.lossy = True
    proof = prove({"server": engine}, [("server", GAMMA)], [PROMPT])["server", GAMMA]
    assert proof.speedup is None and proof.equal_share == 0


def test_no_connection_and_no_answer_are_one_line(small: Small) -> None:
    small.hold.clear()
    slow = Completions(small.address(False), "m", timeout=0.1)
    with pytest.raises(MachineError, match="^url=.*: no answer in timeout=0.1 s; raise it"):
        slow.complete((5,), 1, Sampling(), 0)
    small.hold.set()
    small.close()
    gone = Completions(small.address(True), "m", key="draft_url", timeout=1)
    with pytest.raises(UserError, match="^draft_url=.*: connection refused; start the server"):
        gone.complete((5,), 1, Sampling(), 0)


def test_what_cannot_be_timed_is_one_line(small: Small) -> None:
    engine = engine_of(small)
    for call, said in (
        (lambda: Completions("127.0.0.1:80", "m"), "url=127.0.0.1:80: is not an address"),
        (lambda: Completions("http://a:b/v1", "m"), "url=http://a:b/v1: is not an address"),
        (lambda: Completions("http://a/v1", "m", timeout=0), "timeout=0: must be above 0"),
        (lambda: engine_of(small, Sampling(1.0, top_k=5)), "top_k=5: the API"),
        (lambda: engine.generate(PROMPT, 5, 0), "drafts gamma=3 tokens per pass and not 5"),
        (lambda: OpenAIServer(engine.plain, None, 3, Sampling(), 4).generate(PROMPT, 3, 0), "draft_url: give"),
        (lambda: engine.time_steps(Prompt((5, 1), (0,)), 4), "no encoder"),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert said in str(caught.value)
    small.others = 9
    with pytest.raises(MachineError, match="draft_url=.*also works for others"):
        engine.time_verifications(PROMPT, GAMMA, 8)
    small.metrics = False
    with pytest.raises(UserError, match="draft_url=.*/metrics count no passes"):
        engine.time_verifications(PROMPT, GAMMA, 8)
    assert engine.seconds_per_token(PROMPT, GAMMA, 8) > 0
    small.content = json.dumps({"choices": [{"text": "a b"}], "usage": {"completion_tokens": 1}}).encode()
    with pytest.raises(UserError, match="ends with its first token"):
        engine.seconds_per_token(PROMPT, None, 8)
