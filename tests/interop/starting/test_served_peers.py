"""`bench peers=`: engines that are started as servers, with stand-ins for both servers."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from specbench.bench.bench_setup import Bench
from specbench.bench.benchmark import bench
from specbench.bench.long_prompts import PEER_LENGTHS
from specbench.bench.peers import Peer, Work
from specbench.cli import main
from specbench.config.model import ModelConfig, weights_folder
from specbench.config.server import BY_TEXT, STARTED
from specbench.config.verbs import SERVED, BenchConfig
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.interop.server.client import Client
from specbench.interop.starting import served_peers
from specbench.interop.starting.process import Process
from specbench.interop.starting.served_peers import served
from specbench.interop.starting.startable import STARTABLE
from specbench.interop.starting.two_servers import Asked, Serving
from specbench.methods.model.config import ModelDraftConfig
from specbench.records.served import UNKNOWN
from tests.support.openai_server import Standin, parts, two

TARGET = ModelConfig(name="gpt-mini", shipped="gpt-mini")
PROMPTS = [Prompt((), (2, 40, 41, 42)), Prompt((), (2, 50, 51))]
CONFIG = BenchConfig(target=TARGET, draft=ModelDraftConfig(name="gpt-nano", shipped="gpt-nano"), threads=1)


@dataclass
class Held:
    """A process that is held and goes on; `held` has the names of the processes that stand still."""

    held: set[str]
    name: str

    def hold(self) -> None:
        self.held.add(self.name)

    def go_on(self) -> None:
        self.held.discard(self.name)


@dataclass
class Toy:
    """What was started, in order, what runs, and what of that is held."""

    plain: Standin
    drafting: Standin
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)

    def servers(self, asked: Asked, say: object) -> "ToyServers":
        return ToyServers(self, asked)


class ToyServers:
    """The two servers of `Servers`, which run already."""

    def __init__(self, toy: Toy, asked: Asked) -> None:
        self.toy, self.asked, self.name = toy, asked, ""

    def __enter__(self) -> "ToyServers":
        return self

    def __exit__(self, *ended: object) -> None:
        self.toy.running.remove(self.name)

    def plain(self) -> Serving:
        return self._serving(self.toy.plain, "plain")

    def drafting(self) -> Serving:
        assert self.asked.drafting is not None
        self.toy.asked.append((self.asked.drafting.kind, self.asked.dtype, self.asked.drafting.gamma))
        return self._serving(self.toy.drafting, self.asked.drafting.kind)

    def _serving(self, standin: Standin, name: str) -> Serving:
        self.name = name
        self.toy.running.append(name)
        return Serving(standin.url, "", "Toy 1.2", "toy", Path("log"), cast(Process, Held(self.toy.held, name)))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    with two() as (drafting, plain):
        made = Toy(plain, drafting)
        monkeypatch.setattr(served_peers, "Servers", made.servers)
        monkeypatch.setattr(STARTABLE["vllm"].__class__, "require", lambda self, key="start": "toy")
        yield made


def work(**changed: Any) -> Work:
    folder = weights_folder(TARGET)
    assert folder is not None
    ends = parts().target.eos_ids
    return Work(folder, PROMPTS, 8, ends, torch.float32, torch.device("cpu"))._replace(**changed)


def test_a_peer_decodes_and_drafts_in_its_servers(toy: Toy) -> None:
    """Beside the server without a draft one with a draft runs at a time, and none after the end."""
    asked_while: list[set[str]] = []
    peer: Peer = served("vllm", CONFIG, print)(work())
    assert peer.what == "Toy 1.2 through its server in float32"
    assert peer.lookup is not None and peer.drafting is not None and peer.first is not None
    with peer.process:
        toy.plain.before = lambda number: asked_while.append({*toy.held})
        toy.drafting.before = toy.plain.before
        seconds, alone = peer.decode(0)
        assert seconds > 0 and len(alone) == 8 and toy.running == ["plain"]
        assert asked_while == [set()] and toy.held == {"plain"}, "held, unless it is asked"
        for decode in (peer.lookup(2), peer.drafting(3), peer.drafting(4)):
            assert decode(0)[1] == alone and len(toy.running) == 2 and toy.held >= {*toy.running}
        assert all("plain" in held for held in asked_while[1:])
        assert toy.asked == [("lookup", "float32", 2), ("model", "float32", 3), ("model", "float32", 4)]
        assert peer.first(PROMPTS[0].prefix)[1] == alone[:1]
        asked = toy.plain.asked[-1]
        assert (asked["max_tokens"], asked["temperature"], asked["stream"]) == (1, 0.0, False)
    assert toy.running == []


def test_a_server_that_tells_text_has_the_tokens_of_its_text(toy: Toy) -> None:
    """Or unknown ones, of which none is ever ours, if the text has another number of tokens."""
    toy.plain.engine, toy.plain.owner = "bare", "somebody"
    peer = served("vllm", CONFIG, print)(work())
    with peer.process:
        _, told = peer.decode(0)
        assert len(told) == 8 and (told == [UNKNOWN] * 8 or UNKNOWN not in told)
        toy.plain.count = lambda tokens: tokens - 1
        assert peer.decode(0)[1] == [UNKNOWN] * 7


def test_targets_with_an_encoder_are_refused_before_a_server_runs(toy: Toy) -> None:
    with pytest.raises(UserError, match="peers=vllm: only for decoder-only targets"):
        served("vllm", CONFIG, print)(work(prompts=[Prompt((4, 5), (0,))]))
    assert toy.running == []


def test_what_was_started_ends_if_the_rest_fails(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(client: Client) -> None:
        raise UserError("no list of models")

    monkeypatch.setattr(Client, "identify", refused)
    with pytest.raises(UserError, match="no list"):
        served("vllm", CONFIG, print)(work())
    assert toy.running == []


def test_rows_of_a_peer() -> None:
    """Alone, with lookup and with the draft at each gamma; prompts of the lengths that the target has."""
    made = parts()

    def decode(index: int, tokens: list[int] | None = None) -> tuple[float, list[int]]:
        return 1.0, tokens or [1, 2, 3]

    def with_gamma(gamma: int) -> Callable[[int], tuple[float, list[int]]]:
        return decode

    read: list[int] = []

    def first(prompt: Any) -> tuple[float, list[int]]:
        read.append(len(prompt))
        return 1.0, [UNKNOWN]

    peer = Peer("Toy 1.2", decode, nullcontext(), with_gamma, with_gamma, first)
    setup = Bench(
        made.target, made.draft, PROMPTS, [2, 3], 6, torch.float32, torch.device("cpu"), 1, parts="", folder="x",
        peers=("vllm",), served={"vllm": partial(lambda peer, _: peer, peer)},
    )  # fmt: skip
    rows = bench(setup, lambda _: None)
    longest = made.target.longest
    lengths = [one for one in PEER_LENGTHS if longest is None or one <= longest]
    assert [row.what for row in rows] == [
        "autoregressive against vllm",
        *(f"prompt lookup against vllm's, γ={gamma}" for gamma in (2, 3)),
        *(f"speculative against vllm's, γ={gamma}" for gamma in (2, 3)),
        *(f"a prompt of {length} tokens against vllm" for length in lengths),
    ]
    assert all(row.part == "h" and row.note.startswith("Toy 1.2, ours in float32; ") for row in rows)
    assert {*read} == {*lengths} and all(row.unit == "ms" for row in rows[5:])
    assert all("same tokens in" in row.note for row in rows[:5])
    assert all(row.note.endswith("its tokens are not known") for row in rows[5:])


def test_a_peer_that_is_not_installed_is_told_before_models_load(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("SPECBENCH_VLLM", raising=False)
    assert main(["bench", "peers=vllm", "target=gpt-mini", "draft=gpt-nano", "task=lm-mini"]) == 2
    said = capfd.readouterr().err
    assert "peers=vllm: vLLM is not found; install it (" in said and "SPECBENCH_VLLM" in said


def test_every_engine_that_is_started_and_reads_ids_is_a_peer() -> None:
    assert {*STARTED} == {*STARTABLE} and {*SERVED} == {*STARTED} - {*BY_TEXT}
