"""Rows as people have them, templates, several turns, categories, and scores that run no code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.config.schema import TaskConfig
from specbench.errors import UserError
from specbench.quality import ROW_SCORES, columns_of, quality
from specbench.tasks import Example, Task
from tests.support.calls import newest

Folders = dict[str, Path]
Read = Callable[..., list[Example]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def examples(*rows: dict[str, Any], later_turns: bool = True, **keys: Any) -> list[Example]:
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {"name": "prompts", "source_field": "prompt", "category_field": "category", "path": str(file)} | keys
        return Task(TaskConfig(**config)).examples(None, later_turns)

    return examples


def test_every_form_of_a_prompt(read: Read) -> None:
    rows = [
        {"prompt": "the dog"},
        {"instruction": "translate", "input": "the cat", "output": "die katze"},
        {"instruction": "sit", "input": ""},
        {"messages": [{"role": "user", "content": "the man"}]},
        {"turns": ["one turn"]},
    ]
    prompts = [example.prompt for example in read(*rows)]
    assert prompts == ["the dog", "translate\n\nthe cat", "sit", "user: the man", "one turn"]
    assert [e.prompt for e in read({"prompt": "a", "turns": ["b"]}, source_field="turns")] == ["b"]


def test_turns_are_examples_of_their_own(read: Read) -> None:
    rows = [{"turns": ["first", "second", "third"], "category": "chat"}, {"turns": ["alone"], "category": 7}]
    found = read(*rows)
    assert [example.index for example in found] == [0, 1, 2, 3]
    assert [list(example.turns) for example in found] == [
        ["first"],
        ["first", "second"],
        ["first", "second", "third"],
        [],
    ]
    assert [example.category for example in found] == ["chat"] * 3 + ["7"]
    assert [example.prompt for example in read(*rows, later_turns=False)] == ["first", "alone"]
    assert read({"prompt": ["a", "b"]})[1].turns == ["a", "b"]  # as the hub has MT-Bench
    with pytest.raises(UserError, match="task.rows_per_prompt=2: must be 1 for conversations"):
        read(*rows, rows_per_prompt=2)


def test_a_template_puts_fields_together(read: Read) -> None:
    row = {"question": "who", "context": "a dog", "n": 3, "rest": [1]}
    (example,) = read(row, template="{context}: {question}? ({n}) {}{ x }")
    assert example.prompt == "a dog: who? (3) {}{ x }"
    with pytest.raises(
        UserError, match=r"no field 'answer' \(it has context, n, question, rest\); task.template names"
    ):
        read(row, template="{answer}")
    with pytest.raises(UserError, match="field 'rest' holds a list"):
        read(row, template="{rest}")


def test_the_fields_of_a_file_are_listed_where_none_fits(read: Read) -> None:
    with pytest.raises(UserError) as error:
        read({"question": "who", "context": "a dog"})
    said = "no field 'prompt' (it has context, question); name the field with task.source_field=NAME, or put several"
    assert said in str(error.value) and "task.template=" in str(error.value)
    with pytest.raises(UserError, match=r"no field 'en' \(it has prompt\)"):  # a task of its own form reads no other
        read({"prompt": "who"}, source_field="en")


@pytest.mark.parametrize(
    ("metric", "text", "reference", "score"),
    [
        ("exact", " The  Dog", "the dog", 100), ("exact", "a dog", "the dog", 0), ("chrf", "the dog", "the dog", 100),
        ("number", "so 1,200 + 3 = 1203.", "6 * 2 = 12 #### 1,203", 100), ("number", "none", "#### 3", 0),
    ],
)  # fmt: skip
def test_scores_that_run_no_code(metric: str, text: str, reference: str, score: float) -> None:
    assert quality(metric, [text], [reference]) == pytest.approx(score)
    assert float(ROW_SCORES[metric].score(columns_of(metric, [text], [reference]).sum(0))) == pytest.approx(score)


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0, 1])
def test_the_second_turn_reads_the_first_answer(temperature: int, folders: Folders, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"turns": ["the old dog", "a cat"], "category": "animals"}\n{"prompt": "a house"}\n')
    keys = ["dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=6", "warmup=0"]
    target = f"target={folders['llama']}"
    assert main(["run", target, f"draft={folders['llama-draft']}", f"task={rows}", f"results={tmp_path}", *keys,
                 f"sampling.temperature={temperature}"]) == 0  # fmt: skip
    first, second, third = newest(tmp_path)["prompts"]
    assert second["prompt"] == f"the old dog\n\n{first['baseline'].text}\n\na cat"
    assert second["prompt_tokens"] > first["prompt_tokens"] + len(first["baseline"].tokens) - 1
    assert [one.get("turn") for one in (first, second, third)] == [1, 2, None]
    assert [one.get("category") for one in (first, second, third)] == ["animals", "animals", None]
    assert temperature or first["baseline"].tokens == first["speculative"].tokens


@pytest.mark.full
def test_other_verbs_take_the_first_turns_and_say_so(
    folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"turns": ["the old dog", "a cat"]}\n{"prompt": "a house"}\n')
    keys = ["dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=4", "tokens=8"]
    assert main(["alpha", f"target={folders['llama']}", "draft=random", f"task={rows}", f"results={tmp_path}", *keys,
                 "sampling.temperature=0"]) == 0  # fmt: skip
    err = capfd.readouterr().err
    assert "task prompts, 2 prompts" in err and "of conversations of several turns the first is used here" in err
