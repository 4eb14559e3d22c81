"""The benchmark: every part gives its rows, the arithmetic is right, and our ways are not slower than transformers'."""

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specbench.analysis.costs.core_time import CoreTime
from specbench.bench.baselines import at_fixed_gamma, generate
from specbench.bench.bench_files import table, write
from specbench.bench.bench_setup import Bench, row_of
from specbench.bench.benchmark import bench
from specbench.bench.long_prompts import PROMPT_LENGTHS
from specbench.bench.parts import take_apart
from specbench.bench.timing import Decoder, Timing, in_turn, times_faster
from specbench.cli import main
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.draft import UniformDraft
from specbench.records.timed_documents import BenchRow as Row
from specbench.sampling import Sampling
from tests.support.long_networks import network as long_network
from tests.support.networks import network
from tests.support.toy import EOS, VOCABULARY, ToyModel

ENDS = frozenset({1})


@pytest.fixture(scope="module")
def setup() -> Bench:
    # As many tokens as logits: generate knows no padding of the head.
    target = with_engine("static", network("t5", seed=5, layers=4), 64, ENDS)
    draft = with_engine("static", network("t5", seed=6, layers=1), 64, ENDS)
    prompts = [Prompt((5, 9, 12, 30 + i, 1), (0,)) for i in range(3)]
    return Bench(target, ModelDraft(draft, 64), prompts, [3], 24, torch.float32, torch.device("cpu"))


@pytest.mark.full
def test_all_parts_and_the_ratios(setup: Bench) -> None:
    rows = bench(setup, lambda _: None)
    assert {row.part for row in rows} == set("abcdefg")
    compared = [row for row in rows if row.ratio is not None]
    assert [row.part for row in compared] == ["a", "b", "c", "g", "g"]
    for row in compared[:3]:
        assert row.note == "same tokens in 3 of 3 completions"
    for row in compared[3:]:
        assert row.note == "same tokens in 1 of 1 batches"
    # Measured 3 to 5 on idle cores; a machine that does other things as well must not fail this.
    assert all(row.ratio > 1.3 for row in compared[:2] if row.ratio is not None), compared


@pytest.mark.full
def test_a_draft_without_a_network_has_no_rival(setup: Bench) -> None:
    alone = Bench(
        setup.target, UniformDraft(64, setup.device), setup.prompts[:1], [3], 6, torch.float32, setup.device, 1
    )
    rows = [row for row in bench(alone, lambda _: None) if row.part in "be"]
    assert [row.note for row in rows] == ["not measured: the draft has no network"]


def test_texts_too_short_for_a_second_pass_are_told(setup: Bench) -> None:
    (row,) = bench(replace(setup, max_new_tokens=4, parts="e"), lambda _: None)
    assert row.ours is None and row.note == "not measured: no completion is long enough for a second pass"


def test_rivals_write_what_we_write(setup: Bench) -> None:
    networks = [model.network for model in (setup.target, setup.draft.model)]  # type: ignore[attr-defined]
    alone = generate(networks[0], setup.prompts[0], 12)
    assert generate(networks[0], setup.prompts[0], 12, assistant_model=at_fixed_gamma(networks[1], 2)) == alone
    draft = setup.draft.start(setup.prompts[0], Sampling()).propose([0], 1, torch.Generator())
    assert len(draft.tokens) == 1


def test_ways_take_turns_and_the_first_round_is_not_counted() -> None:
    calls: list[tuple[str, int]] = []

    def way(name: str, seconds: float) -> object:
        def run(prompt: int) -> tuple[float, list[int]]:
            calls.append((name, prompt))
            return seconds, [1, 2]

        return run

    found = in_turn({"ours": way("ours", 1.0), "theirs": way("theirs", 3.0)}, 2, 2)  # type: ignore[dict-item]
    assert [name for name, _ in calls] == ["ours", "theirs", "ours", "theirs", "theirs", "ours", "theirs", "ours",
                                           "ours", "theirs"]  # fmt: skip
    faster = times_faster(found["theirs"], found["ours"])
    assert faster.value == faster.low == faster.high == 3.0


def test_time_is_per_token() -> None:
    assert times_faster([Timing(2.0, [1] * 10)], [Timing(1.0, [1] * 10)]).value == 2.0
    assert times_faster([Timing(2.0, [1] * 10)], [Timing(1.0, [1] * 5)]).value == 1.0


def test_the_parts_of_a_pass_are_timed_where_they_happen_and_add_up() -> None:
    clock = iter(range(10_000))
    goes_round = torch.eye(VOCABULARY).roll(1, 0)[:, None].expand(-1, VOCABULARY, -1).clone()
    goes_round[..., EOS] = 0.0  # the text never ends
    target, other = ToyModel(goes_round + 0.1), ToyModel(goes_round + 0.2)
    for model in (target, other):
        model.eos_ids = frozenset()
        model.now = lambda: float(next(clock))  # type: ignore[method-assign] # each look is one second
    draft = ModelDraft(other, target.vocabulary_size)
    parts, step = take_apart(target, draft, [Prompt((), (0,))] * 3, gamma=2, tokens=30)
    assert step == 1.0
    assert (parts.drafting, parts.verifying) == (2.0, 1.0)
    assert parts.whole == parts.overhead + 3.0 == parts.choosing + parts.scoring + parts.accepting + 3.0
    assert parts.overhead > 0  # what the models' runs do not explain


def test_report(tmp_path: Path) -> None:
    rows = [Row("a", "x", 1.0, 2.0, "ms", 2.0, 1.5, 2.5, "n"), Row("c", "y", unit="", note="not measured")]
    assert [cell.strip() for cell in table(rows).splitlines()[2].split("|")[1:-1]] == [
        "a", "x", "1", "2", "ms", "2.00 [1.50, 2.50]", "n",
    ]  # fmt: skip
    document = {"dtype": "float32", "environment": {"a": 1}, "rows": [asdict(row) for row in rows]}
    as_json, as_text = write(tmp_path, "bench-z", document, table(rows))
    assert json.loads(as_json.read_text())["rows"][0]["ratio"] == 2.0
    assert "- dtype: float32" in as_text.read_text() and "environment" not in as_text.read_text()


@pytest.mark.parametrize(
    "word",
    [
        "sampling.temperature=1", "sampling.top_k=5", "tree=sequoia", "gamma=3", "batch=1", "warmup=1", "force=true",
        "seed=1", "runs=2", "until=2%", "resamples=100", "simulate.alpha=.5", "task.category_field=x",
    ],
)  # fmt: skip
def test_a_key_that_greedy_decoding_ignores_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", word]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.full
def test_a_step_has_a_bound_from_its_graph(setup: Bench) -> None:
    rows = bench(replace(setup, parts="d", bandwidth=1.0, launch_us=2.0), lambda _: None)
    target, draft = (row for row in rows if "bound from the graph" in row.what)
    for row in (target, draft):
        read = row.more["weight_bytes"] + row.more["cache_bytes"]
        assert row.theirs == pytest.approx(1000 * (read / 1e9 + row.more["kernels"] * 2e-6))
        assert "kernels at 2 us" in row.note and "at 1 GB/s" in row.note
    assert target.more["kernels"] > draft.more["kernels"]
    eager = replace(setup, target=with_engine("eager", network("t5", seed=5), 64, ENDS), parts="d")
    assert "not counted: this engine runs no graph of kernels" in [row.note for row in bench(eager, lambda _: None)]


def test_a_bandwidth_of_nothing_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "bandwidth=0"]) == 2
    assert "bandwidth=0.0: must be above 0 (GB/s)" in capfd.readouterr().err


def test_a_fault_of_ours_is_not_said_to_be_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(index: int) -> tuple[float, list[int]]:
        raise RuntimeError("no such shape")

    setup = SimpleNamespace(prompts=[None], repeats=1)
    works: Decoder = lambda index: (1.0, [1])  # noqa: E731
    row = row_of("a", "what", setup, (works, raises))  # type: ignore[arg-type]
    assert row.note == "their decoding fails: no such shape"
    with pytest.raises(RuntimeError, match="no such shape"):
        row_of("a", "what", setup, (raises, works))  # type: ignore[arg-type]


def test_rows_of_a_part_that_waited_for_a_core_are_marked(setup: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short parts are repeated until nothing else runs, three times at most; long ones are marked at once."""
    shares, timed = [0.5, 0.01, 0.5, 0.5, 0.5, 0.5], list[str]()
    monkeypatch.setattr("specbench.analysis.costs.core_time.between", lambda *_: CoreTime(1 - (s := shares.pop(0)), s))
    parts = {letter: (letter, partial(_one_row, timed, letter)) for letter in "fad"}
    monkeypatch.setattr("specbench.bench.benchmark.PARTS", parts)
    rows = bench(replace(setup, parts="fad"), lambda _: None)
    assert timed == ["f", "f", "a", "d", "d", "d"]
    assert [row.disturbed_by for row in rows] == [None, *["it waited for a core 50% of its time"] * 2]
    assert table(rows).count("CONTENDED: it waited for a core 50%") == 2
    both = table([Row("a", "a row", 1.0, note="same tokens", disturbed_by="it waited")])
    assert "| same tokens; CONTENDED: it waited |" in both  # what the row says first


def test_rows_are_kept_after_each_part(setup: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[str]] = []

    def stopped(_: Bench) -> list[Row]:
        raise KeyboardInterrupt

    parts = {letter: (letter, partial(_one_row, [], letter)) for letter in "ag"} | {"b": ("b", stopped)}
    monkeypatch.setattr("specbench.bench.benchmark.PARTS", parts)
    with pytest.raises(KeyboardInterrupt):
        bench(replace(setup, parts="abg"), lambda _: None, lambda rows: kept.append([row.part for row in rows]))
    assert kept == [["a"], ["a", "g"]]


def test_ctrl_c_says_where_the_rows_are_and_replaces_no_fuller_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It promised kept work, and the same command began again; a file of all parts was replaced by one of the first."""

    def stopped(_: Bench) -> list[Row]:
        raise KeyboardInterrupt

    parts = {letter: (letter, partial(_one_row, [], letter)) for letter in "ag"} | {"b": ("b", stopped)}
    monkeypatch.setattr("specbench.bench.benchmark.PARTS", parts)

    def timed(letters: str) -> tuple[int, str, list[str]]:
        words = ["target=gpt-mini", "draft=gpt-nano", "limit=1", "dtype=float32", f"results={tmp_path}"]
        code = main(["bench", *words, f"parts={letters}"])
        files = list(tmp_path.glob("bench/*.json"))
        rows = [row["part"] for file in files for row in json.loads(file.read_text())["rows"]]
        return code, capfd.readouterr().err.splitlines()[-1], rows

    again = "the same command times all parts again, parts=LETTERS some of them"
    assert timed("b") == (130, f"specbench: interrupted; {again}", [])
    code, said, rows = timed("ab")
    (file,) = tmp_path.glob("bench/*.json")
    assert (code, rows) == (130, ["a"])
    assert said == f"specbench: interrupted; 1 row is in {file}; {again}"
    assert timed("ag")[0::2] == (0, ["a", "g"])
    beside = file.with_stem(f"{file.stem}-unfinished")
    kept = f"1 row is in {beside}; {file} is as an earlier benchmark left it, with 2 rows"
    code, said, _ = timed("ab")
    assert (code, said) == (130, f"specbench: interrupted; {kept}; {again}")
    assert [[row["part"] for row in json.loads(one.read_text())["rows"]] for one in (file, beside)] == [
        ["a", "g"],
        ["a"],
    ]
    assert timed("ag")[0::2] == (0, ["a", "g"])


def _one_row(timed: list[str], letter: str, setup: Bench) -> list[Row]:
    timed.append(letter)
    return [Row(letter, "a row", 1.0)]


def test_long_prompts_are_timed_up_to_their_first_token_beside_transformers() -> None:
    made = network("llama", seed=5)
    target = with_engine("native", made, 64, ENDS)
    prompts = [Prompt((), (5, 9, 12, 30 + i, 1)) for i in range(3)]
    cpu = torch.device("cpu")
    own = Bench(target, UniformDraft(64, cpu), prompts, [3], 6, torch.float32, cpu, 1, parts="i")
    rows = bench(own, lambda _: None)
    lengths = [length for length in PROMPT_LENGTHS if length <= made.config.max_position_embeddings]
    read, stepped = rows[: len(lengths)], rows[len(lengths) :]
    assert [row.what for row in read] == [f"a prompt of {length} tokens" for length in lengths] != []
    assert [row.what for row in stepped] == [f"a step after {length} tokens" for length in lengths[: len(stepped)]]
    for row, length in zip(read, lengths, strict=True):
        assert row.unit == "ms" and row.ours and row.more["prefill_per_s"] == pytest.approx(1000 * length / row.ours)
        assert row.note.startswith("same tokens in 2 of 2 completions")


def test_steps_after_long_contexts_stand_beside_their_roofline() -> None:
    made = long_network("llama", torch.float32)
    target = with_engine("native", made, 64, ENDS)
    cpu, prompts = torch.device("cpu"), [Prompt((), tuple(range(2, 60)))]
    own = Bench(target, UniformDraft(64, cpu), prompts, [3], 6, torch.float32, cpu, 1, parts="i")
    rows = [row for row in bench(own, lambda _: None) if row.what.startswith("a step")]
    assert [row.more["context"] for row in rows] == list(PROMPT_LENGTHS)
    config, numbers = made.config, target.program.cache_dtype.itemsize
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * numbers
    for row, length in zip(rows, PROMPT_LENGTHS, strict=True):
        assert row.more["cache_bytes"] == token * length
        assert row.ours and row.theirs and row.theirs > 0 and row.note.count("v(") == 3
        assert all(row.more[f"verify_cost_{count}"] > 0 and row.more[f"roofline_{count}"] >= 1 for count in (2, 4, 8))
    floors = [row.theirs for row in rows]
    assert floors == sorted(floors) and floors[-1] > floors[0]  # the cache is read, too


def test_an_encoder_has_no_long_prompts(setup: Bench) -> None:
    (row,) = bench(replace(setup, parts="i"), lambda _: None)
    assert row.note == "not measured: the target has an encoder"


@pytest.mark.full
def test_random_weights_are_timed_without_an_alpha(tmp_path: Path) -> None:
    """`bench` refuses simulate.alpha, and refused random weights without it."""
    from specbench.cli import main

    words = ["parts=d", "limit=1", "max_new_tokens=4", "repeats=1", "gammas=[2]", f"results={tmp_path}"]
    assert main(["bench", "target=random-llama-5m", "draft=random-llama-5m", *words]) == 0
