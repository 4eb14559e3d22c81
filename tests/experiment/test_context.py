"""`context=`: prompts of a given length from whole rows of the task, and what costs say of other lengths."""

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.analysis.forecast.context_lengths import AtContext, best_at, crossings, forecast, held_out, said
from specbench.cli import main
from specbench.config.keys import tokens_of
from specbench.config.model import ModelConfig
from specbench.config.schema import RunConfig, TaskConfig
from specbench.engine.buffers import CACHED_BYTES, MOST_STACKED, Buffers
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.native.lookups import Lookups
from specbench.engine.native.native_model import NativeModel
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.experiment.identity import identify
from specbench.experiment.prompts import encode, prompt_tokens
from specbench.experiment.prompts_of_length import in_context
from specbench.experiment.run_parts import resolve
from specbench.tasks import Task
from specbench.text.tokenizer import load_tokenizer
from specbench.theory import expected_tokens
from specbench.theory.trees import ROOT

MINI = ModelConfig(name="gpt-mini", shipped="gpt-mini")


@pytest.fixture(scope="module")
def vocabulary():
    return load_tokenizer(MINI, "target")


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=4096,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().float()


def task(path: Path, rows: list[dict[str, object]], **keys: object) -> TaskConfig:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TaskConfig(**({"name": "own", "path": str(path), "source_field": "prompt"} | keys))  # type: ignore[arg-type]


def config_of(own: TaskConfig, context: str) -> RunConfig:
    return RunConfig(target=MINI, task=own, context=context)


def made(config: RunConfig, vocabulary, limit: int | None = None):
    read = Task(config.task).examples(limit)
    return in_context(config, vocabulary, read, partial(prompt_tokens, config, vocabulary))


ROWS = [{"prompt": f"Question {n}: what is the number {n}?", "answer": f"It is {n}."} for n in range(40)]


def test_rows_stand_whole_before_each_prompt(tmp_path, vocabulary):
    config = config_of(task(tmp_path / "rows.jsonl", ROWS, reference_field="answer", suffix=" A:"), "200")
    examples, left_out = made(config, vocabulary, limit=3)
    assert left_out == 0
    for number, one in enumerate(examples):
        *before, own = one.prompt.split("\n\n")
        assert own == ROWS[number]["prompt"] and one.reference == ROWS[number]["answer"]
        places = [int(text.split()[1].strip(":")) for text in before]
        assert (
            places[:5] == [(number + 1 + step) % 40 for step in range(5)] and len({*places, number}) == len(places) + 1
        )
        assert before == [f"{ROWS[place]['prompt']} A:{ROWS[place]['answer']}" for place in places]
        prompt = encode(config, vocabulary, one)
        assert not prompt.truncated and 180 < len(prompt.prefix) <= 200


def test_conversations_keep_their_turns(tmp_path, vocabulary):
    rows = [{"prompt": [f"First {n}?", f"Second {n}?"]} for n in range(90)]
    config = replace(config_of(task(tmp_path / "turns.jsonl", rows), "200"), max_new_tokens=20)
    examples, _ = made(config, vocabulary, limit=4)
    assert [len(one.turns) for one in examples] == [1, 2, 1, 2]
    assert examples[1].turns[0].endswith("\n\nFirst 0?") and examples[1].turns[1] == examples[1].prompt == "Second 0?"
    lengths = [prompt_tokens(config, vocabulary, one) for one in examples]
    assert lengths[0] <= 200 and lengths[1] <= 180  # room for the answer to the first turn
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello?"}]
    config = config_of(task(tmp_path / "chat.jsonl", [{"prompt": messages}] * 30), "120")
    read = Task(config.task).examples(2)
    found, _ = in_context(config, vocabulary, read, lambda one: len(vocabulary.continuation(one.prompt)))
    assert found[0].messages[0] == messages[0] and found[0].messages[1]["content"].endswith("\n\nHello?")


def test_rows_that_do_not_do_are_named(tmp_path, vocabulary):
    few = task(tmp_path / "few.jsonl", ROWS[:3])
    with pytest.raises(UserError, match=r"context=500: whole rows .* make \d+ tokens of it \(there are no more\)"):
        made(config_of(few, "500"), vocabulary)
    long = [*ROWS[:2], {"prompt": "word " * 300}]
    with pytest.raises(UserError, match="the others are longer than what is left"):
        made(config_of(task(tmp_path / "long.jsonl", long), "200"), vocabulary)
    with pytest.raises(UserError, match="context=100: the shortest prompt of .* has "):
        made(config_of(task(tmp_path / "longer.jsonl", long[2:]), "100"), vocabulary)
    _, left_out = made(config_of(task(tmp_path / "both.jsonl", [*ROWS, long[2]]), "100"), vocabulary)
    assert left_out == 1


def test_training_text_follows_where_rows_are_few(tmp_path, vocabulary):
    spare = tmp_path / "train.txt"
    spare.write_text("\n".join(f"A spare text of number {n}." for n in range(60)) + "\n")
    config = config_of(replace(task(tmp_path / "few.jsonl", ROWS[:3]), train_path=str(spare)), "200")
    examples, _ = made(config, vocabulary)
    assert "A spare text of number 0." in examples[0].prompt and "Question 1" in examples[0].prompt


def test_words_for_a_length_and_ids():
    assert [tokens_of(word) for word in ("4k", "4096", "k", "4K", "-1")] == [4096, 4096, None, None, None]
    run = RunConfig(target=MINI, draft=RunConfig().draft, task=TaskConfig(name="lm-mini", shipped="sum-mini.jsonl.gz"))
    run = replace(run, draft=replace(run.draft, kind="random"), dtype="float32", device="cpu")
    ids = [identify(resolve(replace(run, context=context))) for context in ("4k", "4096", "2k", None)]
    assert ids[0] == ids[1] and len(set(ids)) == 3 and "-c4k-" in ids[0] and "-c" not in ids[3].partition("-T0")[2]


def test_runs_over_contexts_are_compared(folders, tmp_path, capsys):
    rows = tmp_path / "rows.txt"
    orders = itertools.islice(itertools.permutations(["the", "old", "dog", "sees", "a", "tree"]), 30)
    rows.write_text("".join(f"{' '.join(one)}\n" for one in orders))
    words = [f"target={folders['llama']}", f"draft={folders['llama-draft']}", f"task={rows}", "limit=4", "warmup=0"]
    more = ["dtype=float32", "engine=eager", "max_new_tokens=12", f"results={tmp_path}"]
    assert main(["run", *words, *more, "context=16,32,48"]) == 0
    capsys.readouterr()
    assert main(["results", "--by", "context", f"--results={tmp_path}", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["context"] for row in found] == [16, 32, 48] and len({row["setting"] for row in found}) == 1
    assert all(row["c"] > 0 and row["verify_cost"] > 0 and row["alpha_low"] <= row["alpha"] for row in found)
    assert main(["results", "--by", "context", f"--results={tmp_path}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "left out and forecast from the others" in out and "left out and forecast from shorter ones" in out
    assert "the speedup within" in out and "tokens, which were not measured: c = " in out
    assert main(["explain", found[1]["run_id"], f"--results={tmp_path}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"at {2 * found[2]['tokens']:,.0f} tokens, which were not measured" in out
    assert main(["explain", found[1]["run_id"], f"--results={tmp_path}", "--format=json"]) == 0
    further = json.loads(capsys.readouterr().out)["forecast"]
    assert further["gamma"] == found[1]["gamma"]
    assert further["contended"] == any(row["disturbed"] for row in found)
    assert main(["run", *words, *more, "context=4x"]) == 2
    assert "context=4x: must be 16 tokens or more, such as 4096 or 4k" in capsys.readouterr().err


def at(tokens: float, gamma: int = 3, alpha: float = 0.8) -> AtContext:
    """A target whose steps read 10 ms of weights and 1 ms of cache a thousand tokens; a draft over a window."""
    emitted = expected_tokens(alpha, gamma)
    return AtContext(tokens, gamma, 0.01 + 1e-6 * tokens, 0.006, 0.012 + 1.1e-6 * tokens, 0.0001, emitted)


def test_costs_of_contexts_that_were_not_measured():
    measured = [at(tokens) for tokens in (1000, 4000, 16000)]
    for tokens in (2000.0, 10000.0, 32000.0):
        found, right = forecast(measured, tokens), at(tokens)
        assert (found.step_s, found.pass_s) == pytest.approx((right.step_s, right.pass_s))
        assert found.speedup == pytest.approx(right.speedup)
    tested = held_out(measured)
    assert [one.measured.tokens for one in tested] == [4000, 16000] and held_out(measured[:2]) == []
    assert all(abs(error) < 1e-9 for one in tested for error in one.errors.values())
    off = [measured[0], replace(measured[1], step_s=2 * measured[1].step_s, measured_speedup=1.25), measured[2]]
    wrong = held_out(off)[0]
    assert wrong.errors["a step"] == pytest.approx(-0.5)
    assert wrong.errors["the speedup"] == pytest.approx(wrong.forecast.speedup / 1.25 - 1)


def test_sentences_on_contexts():
    measured = [replace(at(tokens), measured_speedup=1.1 * at(tokens).speedup) for tokens in (1000, 4000, 16000)]
    lines = said("x", measured)
    further = at(32000)
    assert lines[1] == (
        f"x: forecast at 32,000 tokens, which were not measured: c = {further.c:.3f}, v = {further.verify_cost:.2f} "
        f"and a speedup of {further.speedup:.2f} with γ=3"
    )
    errors = "a step within 0.0% (mean 0.0%), a pass within 0.0% (mean 0.0%), the speedup within 9.1% (mean 9.1%)"
    assert lines[2:] == [
        f"x: left out and forecast from the others, at 4,000 tokens: {errors}",
        f"x: left out and forecast from shorter ones, at 16,000 tokens: {errors}",
    ]
    assert [line for line in said("x", measured, falls=True) if "not measured" in line] == []


def test_where_a_draft_pays():
    slow = [replace(at(tokens), draft_s=0.01) for tokens in (500, 2000, 8000)]
    ((tokens, pays),) = crossings(slow)
    assert pays and forecast(slow, tokens).speedup == pytest.approx(1, abs=0.03)
    assert said("x", slow)[0].startswith("x: pays from a context of about ")
    both = [*slow, *(replace(one, gamma=1) for one in slow)]
    best = best_at(both, 500)
    assert best is not None and best.gamma == 1 and said("x", slow[:1]) == []


def test_large_buffers_grow_one_after_another():
    """What counts is copied, and no two buffers of the old size are held at once."""
    shapes = [(2, 4), (2, 4), (2, 3), (2, 3)]
    small = Buffers.zeros(shapes, MOST_STACKED, torch.float32, torch.device("cpu"))
    for number, layer in enumerate(small.layers):
        layer[..., :3, :] = number + 1
    large = small.grown(MOST_STACKED + 256, 3)
    larger = large.grown(MOST_STACKED + 512, 3)
    assert [layer.numel() for layer in (*large.layers, *large.stacks)] == [0] * 8
    assert [layer[0, 0, :4, 0].tolist() for layer in larger.layers] == [[n, n, n, 0] for n in (1.0, 2.0, 3.0, 4.0)]
    assert [len(part.stacks) for part in (larger.first(2), larger)] == [2, 4] and larger.slots == MOST_STACKED + 512
    few = Buffers.zeros(shapes, 4, torch.float32, torch.device("cpu"))
    few.copy_range(larger, 1, 3, 2)  # of stacks of several and of one
    assert [layer[0, 0, :, 0].tolist() for layer in few.layers] == [[0, 0, n, n] for n in (1.0, 2.0, 3.0, 4.0)]


@pytest.mark.parametrize("kind", [EagerModel, StaticModel, NativeModel])
def test_a_text_that_outgrows_its_buffers(kind, network):
    text = torch.randint(0, 61, (MOST_STACKED + 700,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        expected = network(torch.tensor([text])).logits[0]
    model = kind(network, 61, frozenset())
    session = model.start(Prompt((), tuple(text[: MOST_STACKED - 5])))
    for end in (MOST_STACKED - 2, MOST_STACKED + 3, MOST_STACKED + 300, MOST_STACKED + 301, MOST_STACKED + 700):
        session.rollback(session.length - 2)
        begin = session.length
        nodes = session.extend([*text[begin : begin + 5], 5], [ROOT, 0, 1, 2, 3, 0])  # some of which find no room
        torch.testing.assert_close(nodes[:5], expected[begin : begin + 5], atol=1e-5, rtol=0)
        session.rollback(begin)
        torch.testing.assert_close(session.extend(text[begin:end]), expected[begin:end], atol=1e-5, rtol=0)
    if kind is EagerModel:
        layer = session._caches(None)[0]
        room = layer._rooms["keys"]
        assert room.data_ptr() == layer.keys.data_ptr() and room.shape[-2] < 1.2 * len(text)
    else:
        assert session._capacity == 2816 and model.capacity(20_000) == 20_480


def test_addresses_of_large_masks_hold_few_of_them():
    lookups, run = Lookups(), SimpleNamespace(placed=len)
    for _ in range(20):
        lookups.of(run, (torch.empty(CACHED_BYTES // 4, dtype=torch.uint8),), [0])
        assert len(lookups._addresses) <= 4
    for _ in range(21):
        lookups.of(run, (torch.empty(8),), [0])
    assert len(lookups._addresses) > 20


@pytest.mark.full
def test_alpha_and_recommend_take_several_contexts(folders, tmp_path, capsys):
    rows = tmp_path / "rows.txt"
    rows.write_text("the old dog sees a tree\n" * 40)
    words = [f"target={folders['gpt2']}", f"draft={folders['gpt2-draft']}", f"task={rows}", "engine=eager"]
    more = ["dtype=float32", "max_new_tokens=16", f"results={tmp_path}", "tokens=60", "--format=json"]
    assert main(["alpha", *words, *more, "sampling.temperature=0", "context=16,48"]) == 0
    assert [row["context"] for row in json.loads(capsys.readouterr().out)] == [16, 48]
    assert main(["recommend", *words, *more, "gammas=1,3", "rounds=2", "context=16,32,48"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(row["context"], row["gamma"]) for row in found} == {(c, g) for c in (16, 32, 48) for g in (1, 3)}
    assert all(row["tokens"] < row["context"] + 12 and row["c"] > 0 for row in found)
    assert main(["recommend", *words, *more, "context=16,32", "--for=vllm"]) == 2
    assert "go with one context" in capsys.readouterr().err
