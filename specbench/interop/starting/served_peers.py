"""Engines that are started as servers, timed beside our loop: `specbench bench peers=vllm,openvino,llama.cpp`.

A completion is timed from outside: its time includes the request, one or two milliseconds on one machine.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any

from specbench.bench.peer_process import MATCH
from specbench.bench.peers import Peer, Work
from specbench.bench.timing import Decoder
from specbench.config.draft import DraftConfig
from specbench.config.server import ServerConfig
from specbench.config.verbs import BenchConfig
from specbench.engine.weights.pretrained import tokenizer_in
from specbench.errors import UserError
from specbench.interop.server.client import Asked, Client
from specbench.interop.starting.measure_started import asked_of
from specbench.interop.starting.process import Say
from specbench.interop.starting.startable import STARTABLE
from specbench.interop.starting.two_servers import Servers, Serving
from specbench.methods.lookup.config import LookupConfig
from specbench.records.served import UNKNOWN, Answer
from specbench.sampling import Sampling

SEED = 0  # of a greedy request, which draws nothing


def served(name: str, config: BenchConfig, say: Say) -> Callable[[Work], Peer]:
    """How the engine `name` is started as a peer of this benchmark. Raises UserError if it is not installed."""
    STARTABLE[name].require("peers")
    return partial(_started, name, config, say)


def _started(name: str, config: BenchConfig, say: Say, work: Work) -> Peer:
    """The engine at this work: its server without a draft, and beside it one at a time with a draft.

    Raises UserError for targets with an encoder.
    """
    if work.prompts[0].source:
        raise UserError(f"peers={name}: only for decoder-only targets")

    def servers(draft: DraftConfig, gamma: int) -> Servers:
        asked = ServerConfig(
            start=name, target=config.target, draft=draft, gamma=gamma, dtype=work.wanted, threads=config.threads,
            device=config.device, results=config.results,
        )  # fmt: skip
        return Servers(asked_of(asked), say)

    def with_draft(draft: DraftConfig, gamma: int) -> Decoder:
        beside.close()
        serving = beside.enter_context(servers(draft, gamma)).drafting()
        return partial(_decode, _Server(serving), work)

    with ExitStack() as running:
        plain = running.enter_context(servers(lookup := LookupConfig(match=MATCH), 1)).plain()
        server, beside = _Server(plain), running.enter_context(ExitStack())
        return Peer(
            f"{plain.engine} through its server in {work.wanted}", partial(_decode, server, work), running.pop_all(),
            partial(with_draft, lookup), partial(with_draft, config.draft), partial(_first_token, server),
        )  # fmt: skip


class _Server:
    """A server that is held whenever it is not asked: one that waits by spinning would slow ours."""

    def __init__(self, serving: Serving) -> None:
        self._client, self._process = Client(serving.url, serving.model), serving.process
        self._client.streams = False
        self._client.identify()
        self._process.hold()

    def ask(self, prompt: Sequence[int], tokens: int) -> Answer:
        """At most `tokens` tokens after `prompt`."""
        self._process.go_on()
        try:
            return self._client.ask(Asked(ids=prompt), tokens, Sampling(), SEED)
        finally:
            self._process.hold()


def _decode(server: _Server, work: Work, index: int) -> tuple[float, list[int]]:
    """Seconds and tokens of one greedy completion; tokens of a server that tells only text are its text's.

    They are `UNKNOWN` if the text has another number of tokens than the server counts.
    """
    answer = server.ask(work.prompts[index].prefix, work.max_new_tokens)
    tokens = answer.ids
    if tokens is None:
        tokens = _tokenizer(work.folder).encode(answer.text, add_special_tokens=False)
    return answer.seconds, tokens if len(tokens) == answer.tokens else [UNKNOWN] * answer.tokens


@cache
def _tokenizer(folder: str) -> Any:
    return tokenizer_in(folder)


def _first_token(server: _Server, prompt: Sequence[int]) -> tuple[float, list[int]]:
    """Seconds up to the first token after a prompt, and the token."""
    answer = server.ask(prompt, 1)
    return answer.seconds, answer.ids or [UNKNOWN]
