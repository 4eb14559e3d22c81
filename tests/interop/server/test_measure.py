"""`specbench server` on a stand-in in front of our own engine: what it measures is what the stand-in does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.records.catalog import Catalog
from specbench.records.journal import Journal
from specbench.records.run_record import PromptRecord
from tests.support.openai_server import GAMMA, PASS_S, STEP_S, Standin, one_in, parts, slow, two

SMALL = ["limit=4", "max_new_tokens=40", "warmup=1"]
TARGET = ["target=gpt-mini", "dtype=float32", "device=cpu"]


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins answer unevenly on a busy machine, and tables leave such records out."""
    monkeypatch.setattr("specbench.interop.server.server_summary.contention", lambda *given: [])


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Standin, Standin]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with two() as found:
        yield found


def measured(
    servers: tuple[Standin, Standin], results: Path, *words: str, code: int = 0, plain: bool = True
) -> dict[str, Any]:
    """The summary of the only record that the command writes."""
    drafting, other = servers
    beside = [f"plain={other.url}"] if plain else []
    assert main(["server", drafting.url, *beside, *SMALL, *words, f"results={results}"]) == code
    (head,) = Catalog(results).heads
    return dict(head.summary)


def test_speedup_acceptance_and_verdict_are_those_of_the_server(
    servers: tuple[Standin, Standin], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = measured(servers, tmp_path, *TARGET, "limit=8")
    drafting, _ = servers
    passes, drafted, accepted = drafting.counts
    # The warm-up is counted by the server, and not by us: the same prompt once more.
    assert 0 < found["drafted"] < drafted and found["accepted"] < accepted and found["passes"] < passes
    assert found["gamma"] == GAMMA and found["counted_by"] == "/metrics"
    assert found["tokens_per_pass"] == pytest.approx(1 + found["accepted"] / found["passes"])
    assert found["accepted_per_drafted"] == pytest.approx(found["accepted"] / found["drafted"])
    assert 0 < found["alpha_low"] <= found["alpha"] <= found["alpha_high"] <= 1
    # A pass takes longer than a step by PASS_S - STEP_S at least.
    assert 1 < found["speedup_measured"] < (1 + GAMMA) * STEP_S / PASS_S * 1.5
    assert found["speedup_low"] < found["speedup_measured"] < found["speedup_high"]
    assert found["tpot_s_baseline"] >= STEP_S and found["ttft_s"] >= PASS_S
    assert found["verdict"] == "the target's" and found["verified"] and found["identical"] == 1
    assert found["engine"] == "vLLM 0.0.1" and found["sent"] == "ids" and found["target"] == "gpt-mini"
    first, *_ = capfd.readouterr().out.splitlines()
    assert first.startswith("speedup ") and first.endswith("×, the target's")


def test_a_planted_fault_is_found_with_the_target_and_without(
    servers: tuple[Standin, Standin], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drafting, _ = servers
    drafting.change = one_in(50)
    found = measured(servers, tmp_path / "with", *TARGET, code=1)
    assert found["verdict"] == "a fault of speculation" and not found["lossless"]
    assert found["speedup_measured"] is None
    assert "no speedup: the completions are not the target's" in capfd.readouterr().out
    found = measured(servers, tmp_path / "without")
    assert found["verdict"] == "different" and not found["verified"] and found["identical"] < 1
    assert "not verified (different)" in capfd.readouterr().out


def test_a_fault_of_both_servers_is_no_fault_of_speculation(servers: tuple[Standin, Standin], tmp_path: Path) -> None:
    for one in servers:
        one.change = one_in(10)
    found = measured(servers, tmp_path, *TARGET, code=1)
    assert found["verdict"] == "another distribution" and found["identical"] == 1 and not found["verified"]


def test_at_a_temperature_a_speedup_is_verified_by_the_target_alone(
    servers: tuple[Standin, Standin], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = measured(servers, tmp_path / "without", "sampling.temperature=1")
    assert found["verdict"] == "not verified" and "target=NAME" in found["verdict_reason"]
    assert found["speedup_measured"] is not None
    assert "×, not verified" in capfd.readouterr().out
    found = measured(servers, tmp_path / "with", "sampling.temperature=1", "within=.4", *TARGET)
    assert found["verdict"] == "the target's" and found["proof_tokens"] > 0


def test_another_size_of_fault_is_another_verdict(servers: tuple[Standin, Standin], tmp_path: Path) -> None:
    drafting, plain = servers
    words = ["server", drafting.url, f"plain={plain.url}", *SMALL, "limit=2", "max_new_tokens=9"]
    for within in (".1", ".97"):  # at .97 a token of each kind is enough
        assert main([*words, f"within={within}", f"results={tmp_path}"]) == 0
    assert {head.summary["verdict"] for head in Catalog(tmp_path).heads} == {
        "identical, plain passes only",
        "identical",
    }


def test_too_few_draft_tokens_cover_plain_passes_only(servers: tuple[Standin, Standin], tmp_path: Path) -> None:
    found = measured(servers, tmp_path, "limit=2", "max_new_tokens=9")
    assert found["accepted"] < 29
    assert found["verdict"] == "identical, plain passes only" and not found["verified"]


@pytest.mark.parametrize("engine", ["llamacpp", "bare"])
@pytest.mark.parametrize("words", [["stream=false"], ["send=chat"]])
def test_each_form_of_the_api_is_measured(
    engine: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with two(engine) as servers:
        found = measured(servers, tmp_path, "gamma=3", "label=nano", *words)
        asked = servers[0].asked[-1]
    assert found["verdict"].startswith("identical") and found["draft"] == "nano"
    assert found["streamed"] == ("send=chat" in words) == (found["ttft_s"] is not None)
    assert ("messages" in asked) == ("send=chat" in words)
    if engine == "llamacpp":
        assert found["counted_by"] == "timings" and found["tokens_per_pass"] > 1 and found["alpha"] is not None
        assert asked["top_k"] == 0 and asked["cache_prompt"] is False, "the engine's own defaults are switched off"
    else:
        assert found["alpha"] is None and "may have drafted none" in found["verdict_reason"]
        assert found["verdict"] == "identical, draft tokens not counted" and not found["verified"]


def test_several_at_once_and_arrivals_have_a_record_each(servers: tuple[Standin, Standin], tmp_path: Path) -> None:
    drafting, plain = servers
    words = [f"plain={plain.url}", *SMALL, f"results={tmp_path}"]
    assert main(["server", drafting.url, *words, "batch=1,2", "rates=50"]) == 0
    found = {(head.summary["batch"], head.summary["rate"]): head.summary for head in Catalog(tmp_path).heads}
    assert found.keys() == {(1, None), (2, None), (1, 50.0)}
    assert all(one["identical"] == 1 and one["speedup_measured"] > 0 for one in found.values())
    assert found[1, 50.0]["late_s"] is not None
    before = len(drafting.asked)
    assert main(["server", drafting.url, *words, "batch=1,2", "rates=50"]) == 0
    assert len(drafting.asked) == before, "a record of the same config is there"


def test_draft_tokens_that_are_not_counted_are_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with two("bare") as servers:
        found = measured(servers, tmp_path, *TARGET)
    assert found["verdict"] == "the target's, draft tokens not counted"
    assert found["lossless"] and not found["verified"]
    assert "×, not verified (the target's, draft tokens not counted)" in capfd.readouterr().out


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
def test_what_ended_a_completion_goes_into_the_verdict(
    name: str, servers: tuple[Standin, Standin], tmp_path: Path
) -> None:
    """After a stop string of the server's own the target has not ended: no end is to be tested."""
    for one in servers:
        one.stopped = {name: "###"}
    measured(servers, tmp_path, *TARGET, "limit=1", "max_new_tokens=8")
    for which in ("drafted", "plain"):
        (file,) = (tmp_path / "server").glob(f"*.{which}.jsonl")
        (row,) = [json.loads(line) for line in file.read_text().splitlines()]
        assert row["stop_reason"] == "###"
    (head,) = Catalog(tmp_path).heads
    (prompt,) = Catalog(tmp_path).whole(head.run_id)["prompts"]
    assert prompt["served"]["drafted"].stop == "###"


def test_arrivals_come_in_blocks_that_alternate_between_the_servers(
    servers: tuple[Standin, Standin], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drafting, plain = servers
    order: list[str] = []
    for name, one in (("drafting", drafting), ("plain", plain)):
        one.before = lambda number, name=name: order.append(name)  # type: ignore[misc]
    found = measured(servers, tmp_path, "limit=16", "max_new_tokens=4", "warmup=0", "rates=200")
    assert order == ["drafting"] * 8 + ["plain"] * 16 + ["drafting"] * 8
    assert found["speedup_low"] is not None, "an interval over blocks"
    assert "95% interval over blocks of prompts" in " ".join(capfd.readouterr().out.split())
    (head,) = Catalog(tmp_path).heads
    prompts = Catalog(tmp_path).whole(head.run_id)["prompts"]
    assert [one["served"]["block"] for one in prompts] == [0] * 8 + [1] * 8


def test_servers_are_let_go_before_the_target_is_loaded(
    servers: tuple[Standin, Standin], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.config.server import ServerConfig
    from specbench.interop.server import measure_server as measuring

    done: list[str] = []
    verdict_of = measuring.verdict_of

    def verdict(*given: Any) -> Any:
        done.append("verdict")
        return verdict_of(*given)

    class Silent:
        def say(self, text: str) -> None: ...
        def note(self, text: str) -> None: ...
        def advance(self, done: int, total: int, now: str = "") -> None: ...

    monkeypatch.setattr(measuring, "verdict_of", verdict)
    config = ServerConfig(url=servers[0].url, plain=servers[1].url, limit=2, warmup=0, max_new_tokens=4, batch=[2, 1])
    config.results, config.task = str(tmp_path), parts().config.task
    found = measuring.measure(config, Silent(), lambda: done.append("let go"))
    assert done == ["let go", "verdict", "verdict"]
    assert [one.record["summary"]["batch"] for one in found] == [1, 2]


@pytest.mark.parametrize("owner", [7, "an\x1b[31mengine\nof mine" + "e" * 200, ["list"], None])
def test_a_name_that_a_server_gives_fits_a_line(owner: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with two("bare") as servers:
        for one in servers:
            one.owner = owner
        found = measured(servers, tmp_path, "limit=1", "max_new_tokens=4")
    assert found["engine"].isprintable() and 0 < len(found["engine"]) <= 80
    assert found["engine"].startswith("an") if isinstance(owner, str) else found["engine"] == "unknown engine"


def test_what_was_measured_beside_other_work_is_told_and_left_out(
    servers: tuple[Standin, Standin], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("specbench.interop.server.server_summary.contention", lambda *given: ["it waited"])
    found = measured(servers, tmp_path, "limit=1", "max_new_tokens=4")
    assert found["disturbed"] and found["disturbed_by"] == "it waited"
    assert "CONTENDED: it waited" in capfd.readouterr().out
    assert main(["results", "--again", f"--results={tmp_path}"]) == 0
    said = capfd.readouterr().out
    assert "of a server; its specbench server command with force=true measures it again" in said
    assert "0 measured again" in said


@pytest.mark.parametrize(
    ("plain", "here", "words", "read"),
    [(True, "127.0.0.1", [], [1]), (False, "127.0.0.1", [], [0]), (False, "127.0.0.1", ["label=none"], [1]),
     (True, "localhost", [], [])],
)  # fmt: skip
def test_contention_is_read_off_steps_without_a_draft_of_servers_here(
    plain: bool, here: str, words: list[str], read: list[int], servers: tuple[Standin, Standin], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Passes are uneven by themselves, and what a plain server on another machine does is no contention of this one."""
    given: list[int] = []
    monkeypatch.setattr(
        "specbench.interop.server.server_summary.contention", lambda *one: given.append(len(one[0])) or []
    )
    monkeypatch.setattr("specbench.interop.server.server_summary.HERE", (here,))
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    drafting, other = servers
    first = drafting.url.replace("127.0.0.1", here)
    beside = [f"plain={other.url}"] if plain else []
    settings = ["limit=1", "max_new_tokens=4", "warmup=0", *words]
    assert main(["server", first, *beside, *settings, f"results={tmp_path}"]) == 0
    assert given == read


def test_without_a_plain_server_there_is_no_speedup(servers: tuple[Standin, Standin], tmp_path: Path) -> None:
    found = measured(servers, tmp_path, plain=False)
    assert found["speedup_measured"] is None and found["lossless"] and found["tokens_per_pass"] > 1
    assert found["verdict"] == "not verified" and found["tpot_s"] > 0


def test_what_was_measured_before_a_failure_is_kept(
    servers: tuple[Standin, Standin], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drafting, plain = servers

    def fail(number: int) -> None:
        drafting.status = 500 if number == 4 else 0

    drafting.before = fail
    words = ["server", drafting.url, f"plain={plain.url}", *SMALL, f"results={tmp_path}"]
    assert main(words) == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("specbench: ")]
    assert "HTTP 500: out of order; finished work is kept: run the same command again" in line
    drafting.before, drafting.status, before = slow(0), 0, len(drafting.asked)
    assert main(words) == 0
    assert len(drafting.asked) - before == 3, "a warm-up, and the two prompts that were missing"
    (head,) = Catalog(tmp_path).heads
    assert head.summary["prompts"] == 4 and not (tmp_path / "journals" / f"{head.run_id}.jsonl").exists()


def test_a_load_that_is_done_has_its_record_whatever_becomes_of_the_next(
    servers: tuple[Standin, Standin], tmp_path: Path
) -> None:
    drafting, plain = servers

    def fail(number: int) -> None:
        drafting.status = 500 if number > 4 else 0  # of each load a warm-up and two prompts

    drafting.before = fail
    words = ["server", drafting.url, f"plain={plain.url}", "limit=2", "max_new_tokens=8", "warmup=1", "batch=1,2"]
    assert main([*words, f"results={tmp_path}"]) == 1
    assert [head.summary["batch"] for head in Catalog(tmp_path).heads] == [1]
    drafting.before, drafting.status, before = slow(0), 0, len(drafting.asked)
    assert main([*words, f"results={tmp_path}"]) == 0
    assert sorted(head.summary["batch"] for head in Catalog(tmp_path).heads) == [1, 2]
    assert len(drafting.asked) - before == 3, "the second load alone"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"count": lambda tokens: tokens + 100}, "usage.completion_tokens is 140, not a count up to max_tokens=40"),
        ({"count": lambda tokens: tokens - 3}, "tokens and sends 40 ids; its counts are wrong"),
        ({"count": lambda tokens: None}, "usage.completion_tokens is null"),
        ({"cut": True}, "the stream broke off after"),
        ({"before": slow(3)}, "no answer in timeout=1 s"),
    ],
)
def test_a_server_that_lies_stalls_or_breaks_off_gives_one_line(
    fault: dict[str, Any], said: str, servers: tuple[Standin, Standin], tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    drafting, _ = servers
    vars(drafting).update(fault)
    seconds = 1 if "timeout" in said else 60  # on a busy machine, too, the others answer in time
    words = ["limit=1", "max_new_tokens=40", "warmup=0", f"timeout={seconds}", f"results={tmp_path}"]
    assert main(["server", drafting.url, *words]) in (1, 2)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("specbench: ")]
    assert f"url={drafting.url}" in line and said in line


def test_a_text_that_the_target_does_not_write_in_so_many_tokens_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with two("bare") as (drafting, _):
        drafting.count = lambda tokens: tokens // 2
        words = ["limit=1", "max_new_tokens=40", "warmup=0", "stream=false", f"results={tmp_path}"]
        assert main(["server", drafting.url, *TARGET, *words]) == 2
    assert "counts 20 tokens for a text of" in capfd.readouterr().err


BY_TEXT = ["start=transformers", "target=gpt-mini", "draft=lookup", "gamma=3"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the address"),
        (["http://127.0.0.1:9/v1", "http://127.0.0.1:8/v1"], "one address, not 2"),
        (["http://127.0.0.1:9/v1", "plain=http://127.0.0.1:9"], "is the address of the server with a draft"),
        (["http://127.0.0.1:9/v1", "send=ids"], "needs the target's tokenizer"),
        (["http://127.0.0.1:9/v1", "sampling.regex=a"], "sampling.regex: specbench server sends"),
        (["http://127.0.0.1:9/v1"], "connection refused; start the server"),
        (["http://127.0.0.1:9/v1", "batch=0"], "batch=[0]: must be a list of numbers from 1"),
        (["http://127.0.0.1:9/v1", "token_env=NO_SUCH_NAME"], "there is no such environment variable"),
        (["start=vllm", "target=gpt-mini", "gamma=3"], "start=vllm: name its draft"),
        (["start=vllm", "target=gpt-mini", "draft=lookup"], "gamma is not set; give gamma=N, the number of tokens"),
        (
            ["start=vllm", "http://127.0.0.1:9/v1", "target=gpt-mini", "draft=lookup", "gamma=3"],
            "leave url= and plain= out",
        ),
        (
            ["start=vllm", "target=gpt-mini", "draft=lookup", "draft.match=0", "gamma=3"],
            "draft.match=0: must be from 1",
        ),
        (["start=vllm", "target.shipped=gpt-mini", "draft.kind=model", "gamma=3"], "draft: names no model"),
        ([*BY_TEXT, "send=chat"], "send=chat: start=transformers is asked by text"),
        ([*BY_TEXT, "send=ids"], "send=ids: start=transformers is asked by text"),
        ([*BY_TEXT, "task=prompts", "task.chat_template=true"], "task.chat_template=true: start=transformers is asked"),
        ([*BY_TEXT, "batch=1,4"], "batch=[1, 4]: start=transformers answers one request at a time"),
        ([*BY_TEXT, "rates=[2]"], "rates=[2.0]: start=transformers answers one request at a time"),
    ],
)
def test_a_slip_is_one_line(words: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["server", *words, f"results={tmp_path}"]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    "row", [{"turns": ["the dog", "and then"]}, {"messages": [{"role": "user", "content": "the dog"}]}]
)
def test_conversations_are_not_sent_as_text(
    row: dict[str, object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert main(["server", *BY_TEXT, "task=prompts", f"task.path={file}", f"results={tmp_path}"]) == 2
    assert "has conversations, and start=transformers is asked by text" in capfd.readouterr().err


def test_another_gamma_than_the_server_counts_is_told(
    servers: tuple[Standin, Standin], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drafting, plain = servers
    assert main(["server", drafting.url, f"plain={plain.url}", *SMALL, f"results={tmp_path}", "gamma=2"]) == 2
    assert "tokens per pass by its counts, and gamma=2 was given" in capfd.readouterr().err


def test_turns_read_the_answers_without_a_draft_and_rows_have_categories(
    servers: tuple[Standin, Standin], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"turns": ["the dog", "and then"], "category": "dogs"}, {"turns": ["a cat"], "category": "cats"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = ["task=spec-bench", f"task.path={file}"]
    found = measured(servers, tmp_path / "results", *task)
    assert found["sent"] == "chat" and found["prompts"] == 3
    asked = [one["messages"] for one in servers[0].asked if len(one.get("messages", ())) > 1]
    (record,) = [Catalog(tmp_path / "results").whole(head.run_id) for head in Catalog(tmp_path / "results").heads]
    first = record["prompts"][0]
    assert asked and [one["role"] for one in asked[0]] == ["user", "assistant", "user"]
    assert asked[0][1]["content"] == first["baseline"].text
    for by, names in (("category", ("dogs", "cats")), ("turn", ("1", "2"))):
        capfd.readouterr()
        assert main(["results", f"--by={by}", f"--results={tmp_path / 'results'}"]) == 0
        out = capfd.readouterr().out
        assert all(f"\n{name} " in out for name in names)


def test_other_rows_are_another_measurement(servers: tuple[Standin, Standin], tmp_path: Path) -> None:
    drafting, _ = servers
    file = tmp_path / "rows.jsonl"
    words = [drafting.url, "limit=1", "max_new_tokens=9", "warmup=0", "task=lm-mini", f"task.path={file}"]
    for who in ("dog", "cat"):
        article = f"the old {who} went over the small green hills to the river and slept"
        file.write_text(json.dumps({"article": article}) + "\n", encoding="utf-8")
        assert main(["server", *words, f"results={tmp_path}"]) == 0
    assert len(Catalog(tmp_path).heads) == 2


def test_an_interrupted_measurement_goes_on(servers: tuple[Standin, Standin], tmp_path: Path) -> None:
    drafting, plain = servers
    words = ["server", drafting.url, f"plain={plain.url}", *SMALL, f"results={tmp_path}"]
    finished = Journal.add

    def interrupted(self: Journal, prompt: PromptRecord) -> None:
        finished(self, prompt)
        if prompt["index"] == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "add", interrupted)
        assert main(words) == 130
    before = len(drafting.asked)
    assert main(words) == 0 and len(drafting.asked) - before == 3, "a warm-up, and two of four prompts"


def test_every_reader_of_records_knows_a_server(
    servers: tuple[Standin, Standin], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`results`, `compare`, `explain`, tables and the baseline, apart from runs of our own engine."""
    drafting, plain = servers
    words = [f"plain={plain.url}", *SMALL, f"results={tmp_path}"]
    assert main(["server", drafting.url, *words]) == 0
    assert main(["server", drafting.url, *words, "label=other", "stream=false"]) == 0
    first, second = (head.run_id for head in Catalog(tmp_path).heads)
    at, base = f"--results={tmp_path}", str(tmp_path / "base.jsonl")

    def said(*argv: str, code: int = 0) -> str:
        capfd.readouterr()
        assert main([*argv, at]) == code
        found = capfd.readouterr()
        return found.out + found.err

    listed = said("results")
    assert "identical" in listed and listed.count("gpt-mini") == 2
    assert said("results", first).startswith("speedup ")
    assert "speedup A / B" in said("compare", first, second)
    assert "of γ + 1 = 4 tokens" in said("explain", first)
    assert said("tables", "servers", "--min-prompts=1").count("vLLM 0.0.1") == 2
    assert "vLLM" not in said("tables", "runs", "beyond", "table2", "--min-prompts=1")
    assert "turn" not in said("results", "--by=category", f"--run={first}")
    assert "whose passes are not seen" in said("show", first, code=2)
    assert "whose passes are not seen" in said("results", first, "--as=profile", code=2)
    assert "2 measurements" in said("compare", f"--baseline={base}", "--write")
    assert "speedup" in json.loads(Path(base).read_text(encoding="utf-8").splitlines()[0])["quantities"]
    assert main(["server", drafting.url, *words, "force=true"]) == 0
    assert "1 records compared" in said("compare", f"--baseline={base}")
    assert "ServedSummary" in said("results", "--schema=server")
