"""A server under load: the simulation against closed forms and our batching on a clock of known costs; the command."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specbench.algorithm.batching import Arrivals, Turn, together
from specbench.algorithm.decoding import Decoding, Moment
from specbench.analysis.arrivals import Promise, poisson, quantiles, service
from specbench.analysis.queueing import Request, Served, simulate
from specbench.analysis.turn_costs import Costs, fit, seen, served
from specbench.choose.under_load import _reasons
from specbench.cli import main
from specbench.engine.reads import Read
from specbench.records.choosing import LoadDocument
from specbench.records.decoded import Pass, Trace
from specbench.report.figures.goodput import goodput, where_drafts_stop
from specbench.report.load_tables import best_at
from tests.support.calls import refusal

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]
COSTS = Costs(join_s=0.3, token_s=0.05, at={1: 1.0, 2: 1.4, 4: 2.4}, first_s=0.2, held_s=0.01)
WIDE = Promise(1e9, 1e9)


def requests_of(count: int, seed: int = 0) -> list[Request]:
    draw = random.Random(seed)
    return [
        Request(draw.randint(1, 20), [draw.randint(1, 4) for _ in range(draw.randint(1, 12))]) for _ in range(count)
    ]


# Our batching, with a target whose clock goes on by known costs.


@dataclass(eq=False)
class Clocked:
    """A target and the batch of its sessions; time goes on only by `costs`."""

    costs: Costs
    now_s: float = 100.0
    operations: float = 1.0
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    mark = None  # the clock above is all it has

    def now(self) -> float:
        return self.now_s

    def extend_many(self, reads: Sequence[Read]) -> list[int]:
        rows: list[Any] = [read.session for read in reads]
        joined = sum(row.fresh for row in rows)
        self.now_s += self.costs.pass_s(len(rows), joined, sum(row.held for row in rows), self.draw)
        for row in rows:
            row.fresh = False
        return [0] * len(rows)

    def decode(self, request: Request) -> Decoding:
        self.now_s += self.costs.start_s([request.prompt], 1, self.draw)
        row: Any = SimpleNamespace(batch=self, fresh=True, held=request.prompt)
        yield Moment.READY
        for tokens in request.emitted:
            yield Read(row, [0])
            yield Moment.OVER
            row.held += tokens
        passes = [Pass(tokens, tokens - 1, tokens, 0.0, 0.0, 0.0) for tokens in request.emitted]
        return Trace([0] * sum(request.emitted), 0.0, 0.0, passes=passes)


def really(costs: Costs, arrivals: Sequence[float], requests: Sequence[Request], rows: int) -> list[Turn]:
    target, turns = Clocked(costs), list[Turn]()
    decodings = map(target.decode, requests)
    together(Arrivals(decodings, arrivals, target.now), rows, target, turns.append)  # type: ignore[arg-type]
    return turns


@pytest.mark.parametrize(("rate", "rows"), [(0.02, 4), (0.2, 4), (2.0, 4), (0.1, 1)])
def test_with_exact_costs_the_simulation_is_exact(rate: float, rows: int) -> None:
    requests, arrivals = requests_of(120), poisson(rate, 120, seed=1)
    turns = really(COSTS, arrivals, requests, rows)
    found, said = served(turns, arrivals, requests), simulate(arrivals, requests, COSTS, rows)
    np.testing.assert_allclose(
        [(one.first_s, one.end_s, one.tokens) for one in said], [(one.first_s, one.end_s, one.tokens) for one in found]
    )
    assert max(len(turn.rows) for turn in turns) <= rows


def test_costs_are_recovered_from_turns_and_predict_other_loads() -> None:
    requests = requests_of(80)
    closed = [really(COSTS, [0.0] * 80, requests, rows) for rows in (1, 2, 4)]
    found = fit([one for turns in closed for one in seen(turns, requests)], [1, 2, 4])
    assert found.join_s == pytest.approx(0.3) and found.token_s == pytest.approx(0.05)
    assert found.at == pytest.approx(COSTS.at) and found.first_s == pytest.approx(0.2)
    assert found.held_s == pytest.approx(0.01)
    turns = seen(closed[1], requests)
    slow = [replace(one, start_s=1.5 * one.start_s, pass_s=1.5 * one.pass_s) for one in turns]
    assert found.drift(slow) == pytest.approx(1.5) and found.times(1.5).drift(slow) == pytest.approx(1)
    others, arrivals = requests_of(100, seed=5), poisson(0.25, 100, seed=2)
    real = service(served(really(COSTS, arrivals, others, 4), arrivals, others), Promise(10, 1.5))
    said = service(simulate(arrivals, others, found, 4), Promise(10, 1.5))
    assert 0.1 < real["kept"] < 1 and said["goodput"] == pytest.approx(real["goodput"])
    assert said["ttft_s"] == pytest.approx(real["ttft_s"]) and said["tpot_s"] == pytest.approx(real["tpot_s"])


def test_starts_may_cost_more_where_few_requests_are_at_work() -> None:
    requests, factor = requests_of(80), {1: 1.3, 2: 1.1, 4: 0.9}
    turns = [
        replace(one, start_s=one.start_s * factor[rows])
        for rows in factor
        for one in seen(really(COSTS, [0.0] * 80, requests, rows), requests)
        if one.rows == rows
    ]
    found = fit(turns[::2], list(factor), turns[1::2])
    for rows in factor:
        assert found.start_at[rows] / found.start_at[4] == pytest.approx(factor[rows] / 0.9, rel=0.05)


def test_a_start_is_told_how_many_requests_are_then_at_work() -> None:
    told = list[int]()

    class Noting:
        def start_s(self, prompts: Sequence[int], rows: int, draw: random.Random) -> float:
            told.append(rows)
            return COSTS.start_s(prompts, rows, draw)

        pass_s = staticmethod(COSTS.pass_s)

    requests, arrivals = requests_of(120), poisson(0.2, 120, seed=1)
    simulate(arrivals, requests, Noting(), 4)
    assert told == [len(turn.rows) for turn in really(COSTS, arrivals, requests, 4) if turn.joined]
    assert len(set(told)) == 4


def test_a_cost_that_would_be_negative_is_left_out_and_the_spread_keeps_sums() -> None:
    requests, draw = requests_of(60), random.Random(3)
    turns = [
        replace(one, pass_s=one.pass_s * draw.uniform(0.5, 1.5) - 1e-3 * one.held)
        for one in seen(really(replace(COSTS, held_s=0.0), [0.0] * 60, requests, 2), requests)
    ]
    found = fit(turns, [1, 2])
    assert found.held_s >= 0 and min(found.at.values()) > 0
    assert np.mean(found.spread[1]) == pytest.approx(1)
    said = [found.pass_s(one.rows, len(one.prompts), one.held, draw) for one in turns for _ in range(20)]
    assert sum(said) / 20 == pytest.approx(sum(one.pass_s for one in turns), rel=0.05)


# Closed forms.


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_server_of_one_row_waits_as_in_m_d_1(load: float) -> None:
    """Pollaczek and Khinchine: with service times of 1 the mean wait is load / (2 (1 - load))."""
    count = 40_000
    found = simulate(poisson(load, count, 4), [Request(1, [1])] * count, Costs(0, 0, {1: 1.0}, 0, 0), rows=1)
    assert np.mean([one.ttft_s - 1 for one in found]) == pytest.approx(load / (2 * (1 - load)), rel=0.06)


def test_rows_that_are_always_at_work_serve_what_passes_allow() -> None:
    costs, requests = Costs(0, 0, {1: 1.0, 4: 1.0}, 0, 0), [Request(1, [2, 2, 2])] * 400
    found = service(simulate([0.0] * 400, requests, costs, rows=4), WIDE)
    assert found["throughput"] == pytest.approx(4 / 3) and found["tokens_per_second"] == pytest.approx(8)
    assert found["tpot_s"] == pytest.approx(dict.fromkeys(("p50", "p95", "p99"), 2 / 5))  # 2 s for 5 tokens


def test_every_request_is_served_in_order_and_none_before_it_arrives() -> None:
    requests, arrivals = requests_of(300), poisson(0.3, 300, 0)
    found = simulate(arrivals, requests, COSTS, rows=4)
    assert [one.tokens for one in found] == [sum(one.emitted) for one in requests]
    assert all(one.arrived_s < one.first_s <= one.end_s for one in found)
    assert [one.first_s for one in found] == sorted(one.first_s for one in found)


def test_more_requests_a_second_or_fewer_rows_never_make_anybody_faster() -> None:
    requests, flat = requests_of(300), Costs(0, 0, {1: 1.0, 8: 1.0}, 0, 0)

    def mean(rate: float, rows: int) -> float:
        return float(np.mean([one.ttft_s for one in simulate(poisson(rate, 300, 0), requests, flat, rows)]))

    assert mean(0.1, 4) < mean(0.3, 4) < mean(0.6, 4)
    by_rows = [mean(0.5, rows) for rows in (1, 2, 8)]
    assert by_rows == sorted(by_rows, reverse=True)


def test_goodput_counts_both_promises_over_the_whole_time() -> None:
    found = [Served(0, 1, 5, 5), Served(1, 5, 6, 2), Served(2, 3, 9, 3), Served(3, 3.5, 3.5, 1)]
    said = service(found, Promise(ttft_s=2, tpot_s=1))  # the second waits for 4 s, the third has 3 s a token
    assert (
        said["kept"] == 0.5 and said["goodput"] == pytest.approx(2 / 9) and said["throughput"] == pytest.approx(4 / 9)
    )
    assert quantiles(range(1, 101)) == {"p50": 50, "p95": 95, "p99": 99} and quantiles([7.0])["p99"] == 7


# The command.


@pytest.fixture
def argv(folders: Folders, tmp_path: Path) -> list[str]:
    rows = [{"en": " ".join(["dog", "tree", "house", "red"][: 1 + n % 4]), "de": "der hund ."} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return [
        "recommend", "--load", f"target.path={folders['t5']}", f"draft.path=[{folders['t5-draft']}]", "task=ende",
        f"task.path={tmp_path}/rows.jsonl", f"results={tmp_path}", "dtype=float32", "device=cpu", "max_new_tokens=6",
        "engine=eager", "gammas=2", "batch=1,2", "rounds=2", "requests=20",
    ]  # fmt: skip


def test_recommend_under_load(argv: list[str], tmp_path: Path, capfd: Capture) -> None:
    times = tmp_path / "times.txt"
    times.write_text("\n".join(str(10 + 0.5 * n) for n in range(30)))
    words = ["verify=1", "rates=40,80", f"arrivals={times}", "--picture", f"{tmp_path}/load.svg", "--for", "vllm"]
    code = main([*argv, *words])
    out, err = capfd.readouterr()
    assert code == 0, err
    (file,) = (tmp_path / "load").glob("*.json")
    record: LoadDocument = json.loads(file.read_text())
    assert [(row["candidate"] == "none", row["gamma"]) for row in record["rows"]] == [(True, 0), (False, 2)] * 2
    assert [row["rate"] for row in record["rows"]] == [40, 40, 80, 80]
    assert len(record["verified"]) == 2 and all(
        one["measured"]["throughput"] > 0 < one["slower"] for one in record["verified"]
    )
    alone, drafting = record["costs"]
    assert alone["tokens_per_pass"] == 1 and set(alone["pass_s"]) == {"1", "2"} and not alone["c"]
    assert drafting["tokens_per_pass"] >= 1 and drafting["verify_cost"]["1"] > 0
    assert "served for real" in out and "target alone" in out and (tmp_path / "load.svg").exists() and "vLLM:" in out


def test_the_picture_says_where_drafts_stop(argv: list[str], tmp_path: Path, capfd: Capture) -> None:
    gains = {0.5: (4.0, 6.0), 1.0: (5.0, 4.0)}
    rows: list[Any] = [
        {"candidate": name, "gamma": gamma, "load": load, "rate": 10 * load, "goodput": value, "goodput_low": value,
         "goodput_high": value, "tpot_s": {"p50": 1.0}}
        for load, pair in gains.items() for (name, gamma), value in zip((("none", 0), ("d", 3)), pair, strict=True)
    ]  # fmt: skip
    record: Any = {
        "rows": rows, "verified": [], "promise": {"ttft_s": 1, "tpot_s": 1}, "target": "t", "task": "e",
        "temperature": 0.0, "dtype": "float32", "hardware": "here", "server_rows": 4,
    }  # fmt: skip
    assert where_drafts_stop(record) == pytest.approx(0.5 + 0.5 * 2 / 3, abs=0.02)
    assert best_at(rows[:2])["candidate"] == "d" and best_at(rows[2:])["candidate"] == "none"
    rows[1] |= {"goodput": 3.99, "tpot_s": {"p50": 0.5}}
    assert best_at(rows[:2])["candidate"] == "d"  # nearly the same goodput, and faster
    assert len(goodput(record).points) == 4
    record["rows"] = rows[:2]
    assert where_drafts_stop(record) is None


@pytest.mark.parametrize(
    ("drafts", "said"),
    [
        ((0, 1, 1), "only at these loads: 0.70, 1.00"),
        ((1, 0, 0), "up to load 0.50, and not above"),
        ((1, 1, 1), "up to the highest load"),
        ((0, 0, 0), "at no load"),
    ],
)
def test_the_loads_at_which_a_draft_pays_are_named(drafts: tuple[int, ...], said: str) -> None:
    loads, plan = (0.5, 0.7, 1.0), SimpleNamespace(capacity=10.0, rows=4)
    best: Any = [{"candidate": "d" if one else "none", "load": at} for one, at in zip(drafts, loads, strict=True)]
    assert said in _reasons(best, {}, plan)[1]  # type: ignore[arg-type]


def test_settings_of_a_saved_load(tmp_path: Path, capfd: Capture) -> None:
    draft = {"kind": "model", "path": "/weights/small", "hub": None, "revision": None, "shipped": None, "name": "d"}
    sampling = {"temperature": 0.0, "top_k": None, "top_p": None}
    record = {
        "schema_version": 2, "load_id": "x",
        "rows": [{"candidate": "none", "goodput": 4.0}, {"candidate": "d", "goodput": 6.0}],
        "alpha_rows": [{"draft": "d", "accept": "exact", "candidate": "d"}],
        "configs": [{"target": {**draft, "path": "/weights/large"}, "draft": draft, "sampling": sampling}],
        "best": [{"candidate": "d"}],
        "schedules": {"d": [{"first": 1, "last": 4, "gamma": 3}, {"first": 5, "last": None, "gamma": 0}]},
    }  # fmt: skip
    file = tmp_path / "load.json"
    file.write_text(json.dumps(record))
    assert main(["recommend", "--for", "vllm,tensorrt-llm", "--from", str(file)]) == 0
    out = capfd.readouterr().out
    assert (
        '"num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 1024, 0]]' in out
        and "1.50× here (highest goodput" in out
    )
    assert "draft_len_schedule:\n        4: 3" in out
    for nothing in (
        {"schedules": {"d": [{"first": 1, "last": None, "gamma": 0}]}},
        # More tokens per second at some number of requests, and at no load more of them in time.
        {"best": [{"candidate": "none"}]},
    ):
        file.write_text(json.dumps(record | nothing))
        assert main(["recommend", "--for", "vllm", "--from", str(file)]) == 0
        out = capfd.readouterr().out
        assert "no draft pays" in out and "num_speculative_tokens" not in out
    record["schedules"] = {"d": [{"first": 1, "last": None, "gamma": 0}]}
    file.write_text(json.dumps(record))
    assert main(["recommend", "--for", "vllm", "--from", str(file)]) == 0
    assert "no draft pays" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["batch=8"], "batch=[8]: must be a list of batch sizes"),
        (["gamma=3"], "gamma=3: specbench recommend --load does not use gamma; give gammas=1,3,5"),
        (["tree=sequoia"], "tree=sequoia: specbench recommend --load does not use tree"),
        (["engine=transformers"], "engine=transformers: --load times our own batching"),
        (["--from", "x.json", "--for", "vllm"], "--from: does not go with --load"),
        (["context=16,32"], "context: --load is for one context; give one"),
        (["arrivals=nowhere"], "arrivals=nowhere: must be a file or folder"),
        (["arrivals=ROWS"], "is not a file of seconds, a line each"),
        (["arrivals=SAME"], "the first 20 requests need two different times"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, argv: list[str], tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "same.txt").write_text("5\n" * 20 + "9\n")
    given = [word.replace("ROWS", f"{tmp_path}/rows.jsonl").replace("SAME", f"{tmp_path}/same.txt") for word in words]
    kept = [one for one in argv if not any(one.startswith(f"{word.partition('=')[0]}=") for word in given)]
    assert said in refusal([*kept, *given], capfd)


def test_few_prompts_are_a_mistake(argv: list[str], capfd: Capture) -> None:
    assert main([*argv, "batch=1,8"]) == 2
    assert "batch=1,8: costs of turns are timed over 8 prompts, and these batch sizes need 18" in capfd.readouterr().err


@pytest.mark.parametrize("key", ["rates=[1]", "requests=50"])
def test_keys_of_a_load_are_no_keys_of_a_ranking(key: str, capfd: Capture) -> None:
    assert main(["recommend", "draft=random", key]) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_a_recommendation_that_is_not_there_is_no_damaged_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--for", "vllm", "--from", "none.json"]) == 2
    said = capfd.readouterr().err
    assert "--from none.json: there is no file of that name" in said and "JSON document" not in said
