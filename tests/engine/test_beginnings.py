"""Beginnings that prompts share: read once, then copied, with the tokens and the logits of prompts read as a whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.algorithm.decoding import DecodingSpec, autoregressive, speculative
from specbench.engine.batch import Batch
from specbench.engine.beginnings import LEAST, PROMPTS, Beginnings, common_length, shared_lengths
from specbench.engine.eager.model import EagerModel
from specbench.engine.selection import with_engine
from specbench.engine.session import Model, Prompt
from specbench.engine.window import Window
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from tests.support import architectures, networks
from tests.support.calls import called, small_run
from tests.support.long_networks import ENDS, SIZE, network

SYSTEM = torch.randint(2, SIZE, (70,), generator=torch.Generator().manual_seed(9)).tolist()


def prompts(*lengths: int) -> list[Prompt]:
    """One beginning, and after it other tokens of these numbers."""
    found = []
    for number, length in enumerate(lengths):
        draw = torch.Generator().manual_seed(number)
        own = torch.randint(2, SIZE, (length,), generator=draw).tolist()
        found.append(Prompt((), (*SYSTEM, 2 + number, *own)))
    return found


def model(kind: str, engine: str, dtype: torch.dtype = torch.float32) -> EagerModel:
    made = network(kind, dtype)
    return EagerModel(made, SIZE, ENDS) if engine == "eager" else with_engine(engine, made, SIZE, ENDS, "auto")


def counted(start: Any, prompt: Prompt) -> tuple[Any, int, int]:
    """A session, and how many tokens it read and copied."""
    before = PROMPTS.now()
    session = start(prompt)
    return session, *before.to(PROMPTS.now())


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("engine", ["native", "static", "eager"])
def test_a_beginning_is_read_once_and_the_logits_are_those_of_whole_prompts(engine: str, rows: int) -> None:
    given = prompts(5, 9, 1, 130)
    made = model("llama", engine)
    reader: Model = Batch.of(made, rows) if rows else made
    whole = [reader.start(prompt).extend(prompt.prefix[-1:]) for prompt in given]
    made.beginnings = Beginnings(given)
    for number, (prompt, expected) in enumerate(zip(given, whole, strict=True)):
        session, read, copied = counted(reader.start, prompt)
        assert (read, copied) == ((len(prompt.prefix) - 1, 0) if not number else (len(prompt.prefix) - 71, 70))
        found = session.extend(prompt.prefix[-1:])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        session.extend([3, 4])  # what is kept is no session's
        del session


@pytest.mark.parametrize("engine", ["native", "static", "eager"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2", "gemma3_text"])
@pytest.mark.covering
def test_with_equal_chunks_logits_are_the_same_to_the_bit(kind: str, engine: str) -> None:
    """Where the beginning was read in a run of its own in both."""
    made = model(kind, engine)
    beginning, prompt = Prompt((), (*SYSTEM, 5)), Prompt((), (*SYSTEM, 7, 8, 9))
    session = made.start(beginning)
    session.extend([7, 8])
    expected = session.extend([9])
    made.beginnings = Beginnings([beginning, prompt])
    made.start(beginning)
    session, read, copied = counted(made.start, prompt)
    assert (read, copied) == (2, 70)
    found = session.extend([9])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    if engine == "native" and made.invariant and getattr(made, "reads_prompts", False):
        assert torch.equal(found, expected)


def test_what_a_later_prompt_shares_with_the_second_alone_is_kept_too() -> None:
    first, second = (*range(2, 22), 50), (*range(2, 22), *range(30, 60))
    third = (*second[:40], 3, 4)
    kept = Beginnings([Prompt((), one) for one in (first, second, third)])
    made = model("llama", "static")
    made.beginnings = kept
    found = [counted(made.start, Prompt((), one))[1:] for one in (first, second, third)]
    assert found == [(20, 0), (29, 20), (1, 40)]


def test_a_short_beginning_is_read_with_the_rest() -> None:
    texts = [(*range(2, 1 + LEAST), number, 5, 6) for number in (40, 41)]
    kept = Beginnings([Prompt((), one) for one in texts])
    assert not kept and not Beginnings([])
    assert Beginnings([Prompt((), (2, *one)) for one in texts])


def test_how_much_texts_share() -> None:
    texts = [(1, 2, 3), (1, 2, 4, 5), (9,), (1, 2, 4, 5)]
    assert shared_lengths(texts) == {(1, 2, 3): 2, (1, 2, 4, 5): 4, (9,): 0}
    assert [common_length(texts[0], one) for one in texts] == [3, 2, 0, 2]


@pytest.mark.parametrize("engine", ["native", "static", "eager"])
def test_the_encoder_reads_an_equal_source_once(engine: str) -> None:
    made: Any = networks.network("t5", seed=1)
    made = EagerModel(made, SIZE, ENDS) if engine == "eager" else with_engine(engine, made, SIZE, ENDS, "auto")
    given = [Prompt((5, 6, 7, 1), (0,)), Prompt((9, 6, 1), (0,)), Prompt((5, 6, 7, 1), (0,))]
    whole = [made.start(prompt).extend([0]) for prompt in given]
    made.beginnings = Beginnings(given)
    found = [counted(made.start, prompt) for prompt in given]
    assert [one[1:] for one in found] == [(4, 0), (3, 0), (0, 4)]
    for (session, _, _), expected in zip(found, whole, strict=True):
        assert torch.equal(session.extend([0]), expected)


def test_windows_and_recurrent_states_are_read_as_a_whole() -> None:
    given = prompts(5, 9)
    windowed = model("llama", "static").windowed(Window(16, 4), "draft.window")
    recurrent = EagerModel(architectures.network("mamba2", seed=1), SIZE, ENDS)
    for made in (windowed, recurrent):
        made.beginnings = Beginnings(given)
        assert [counted(made.start, prompt)[1:] for prompt in given] == [(75, 0), (79, 0)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("engine", ["native", "static", "eager"])
def test_completions_are_those_of_whole_prompts(engine: str, temperature: float) -> None:
    target, of_draft = model("llama", engine), model("llama", engine)
    given, draft = prompts(5, 9, 30), ModelDraft(of_draft, SIZE)
    spec = DecodingSpec.algorithm_1(Sampling(temperature=temperature), 20, 3)

    def decoded() -> list[Any]:
        seeds = (torch.Generator().manual_seed(number) for number in range(len(given)))
        return [
            (autoregressive(target, prompt, spec, seed), speculative(target, draft, prompt, spec, seed))
            for prompt, seed in zip(given, seeds, strict=True)
        ]

    whole = decoded()
    target.beginnings, of_draft.beginnings = Beginnings(given), Beginnings(given)
    for number, (pair, before) in enumerate(zip(decoded(), whole, strict=True)):
        for one, other in zip(pair, before, strict=True):
            assert one.tokens == other.tokens
            assert other.prompt_copied == 0 and one.prompt_read + one.prompt_copied == other.prompt_read
        assert pair[0].prompt_copied == (70 if number else 0) and pair[1].draft_prompt_copied == (70 if number else 0)


BEGINNING = "task.prefix=the old dog sees a small house and the old man sees a red tree and a green cat runs "


def of_prompts(record: Any, mode: str) -> list[tuple[int, ...]]:
    """Of each prompt the tokens that the target read and copied, and with a draft the draft's."""
    names = ["prompt_read", "prompt_copied"]
    if mode == "speculative":
        names += ["draft_prompt_read", "draft_prompt_copied"]
    return [tuple(getattr(prompt[mode], name) for name in names) for prompt in record["prompts"]]


@pytest.mark.covering
@pytest.mark.parametrize("engine", ["native", "eager"])
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_run_reads_the_beginning_of_its_task_once(
    folders: dict[str, Path], tmp_path: Path, capfd: Any, engine: str, temperature: int, batch: int
) -> None:
    words = [BEGINNING, f"engine={engine}", f"sampling.temperature={temperature}", f"batch={batch}"]
    found, whole = (
        called(small_run(folders, tmp_path / name, *words, more, kind="llama"), tmp_path / name, capfd)[3]
        for name, more in (("a", "reuse=true"), ("b", "reuse=false"))
    )
    assert found["run_id"] != whole["run_id"]
    lengths = [prompt["prompt_tokens"] - 1 for prompt in found["prompts"]]
    alone, ours = of_prompts(found, "baseline"), of_prompts(found, "speculative")
    assert [read + copied for read, copied in alone] == lengths
    assert alone[0][1] == 0 and all(copied >= 18 for _, copied in alone[1:])
    assert ours == [(*one, *one) for one in alone]
    assert of_prompts(whole, "baseline") == [(length, 0) for length in lengths]
    for mode in ("baseline", "speculative"):
        assert [one[mode].tokens for one in found["prompts"]] == [one[mode].tokens for one in whole["prompts"]]


def test_later_turns_copy_the_turns_before_them(folders: dict[str, Path], tmp_path: Path, capfd: Any) -> None:
    rows = tmp_path / "rows.jsonl"
    first, other = "the old dog sees a small house and a tree", "a red man sees the green cat and the old tree"
    turns = [[one, "the small cat runs", "a dog sits"] for one in (first, other)]
    rows.write_text("".join(json.dumps({"turns": one}) + "\n" for one in turns))
    words = [f"task={rows}", "engine=native", "task.chat_template=false"]
    argv = [word for word in small_run(folders, tmp_path, *words, kind="llama") if not word.startswith("task.path")]
    record = called([word for word in argv if word != "task=ende"], tmp_path, capfd)[3]
    for mode in ("baseline", "speculative"):
        counts = of_prompts(record, mode)
        for place, before in enumerate(record["prompts"][:-1]):
            if place % 3 < 2:  # the next prompt is a later turn: it begins with all of this one
                assert counts[place + 1][1] >= before["prompt_tokens"] - 1 > 8
