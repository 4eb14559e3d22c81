"""Conversations with tool calls, turn by turn, and α by turn and by phase."""

import json
from dataclasses import replace
from typing import Any

import pytest

from specbench.analysis.acceptance.phases import labels, phases_of
from specbench.analysis.acceptance.strata import strata
from specbench.cli import main
from specbench.compose.hydra_app import composed_config
from specbench.config.schema import RunConfig, TaskConfig
from specbench.errors import UserError
from specbench.tasks import Task
from specbench.text.vocabulary import Vocabulary
from tests.support.timed_prompts import prompt


def test_each_message_of_the_assistant_is_a_prompt():
    task = composed_config(RunConfig, ["task=tools-mini", "target=t5-mini", "draft=lookup"], "run").task
    examples = Task(task).examples(None)
    assert len(examples) == 128 and [one.index for one in examples] == list(range(128))
    first, second = examples[:2]
    assert (first.turn, second.turn, first.category) == (1, 2, "notes")
    assert [one["role"] for one in second.messages] == ["system", "user", "assistant", "tool"]
    assert second.messages[2]["content"] == first.reference and first.reference.startswith("<tool_call>{")
    calls = [one.reference for one in examples if one.reference.startswith("<tool_call>")]
    made = [json.loads(one.removeprefix("<tool_call>").removesuffix("</tool_call>")) for one in calls]
    assert len(made) > 60 and all(set(one) == {"name", "arguments"} for one in made)
    assert sum(one.turn == 1 for one in examples) == 24


def test_rows_without_turns_are_named(tmp_path):
    rows = tmp_path / "rows.jsonl"
    for row, said in (
        ({"prompt": "Hello"}, "needs messages"),
        ({"prompt": [{"role": "user", "content": "Hello"}]}, "no message is the assistant's"),
    ):
        rows.write_text(json.dumps(row) + "\n")
        with pytest.raises(UserError, match=said):
            Task(TaskConfig(name="own", path=str(rows), source_field="prompt", each_turn=True)).examples(None)


@pytest.mark.parametrize(
    ("pieces", "inside", "found"),
    [
        (["<think>", "so", "</think>", "yes"], False, "ttta"),
        (["so", "</think>", "yes", "<think>", "no"], True, "ttatt"),
        (["yes", " <", "think", ">", "no", "</", "think", ">", " it"], False, "attttttta"),
        (["a", "b"], False, "aa"),
        (["a", "b"], True, "tt"),
    ],
)
def test_phases_by_tags(pieces, inside, found):
    assert "".join(label[0] for label in labels(pieces, "<think>", "</think>", inside)) == found


def test_strata_by_turn_and_phase():
    made = [prompt(8, 10, 0.5) | {"turn": 1}, prompt(8, 10, 0.9) | {"turn": 2}, prompt(8, 10, 0.7) | {"turn": 2}]
    assert [(one.name, one.prompts, round(one.alpha.value, 3)) for one in strata(made, "turn")] == [
        ("1", 1, 0.5),
        ("2", 2, 0.8),
    ]
    thinks: dict[str, Any] = prompt(8, 10, 0.5)
    thinks["beta"] = [0.9] * 4 + [0.1] * 4
    for way in ("baseline", "speculative"):
        thinks[way] = replace(thinks[way], tokens=[1, 5, 5, 2, 5, 5, 5, 5])
    record: Any = {"thinking": ["<t>", "</t>"], "pieces": {"1": "<t>", "2": "</t>", "5": "x"}}
    found = strata([thinks], "phase", True, phases_of(record))
    assert [(one.name, one.tokens, one.alpha.value) for one in found] == [("thinking", 4, 0.9), ("answer", 4, 0.1)]
    assert all(one.tokens_per_pass.value == 4 for one in found)
    assert phases_of({"pieces": {}}) is None  # type: ignore[typeddict-item]


def test_tags_are_those_of_the_template():
    class Tokenizer:
        chat_template = "{{ '<think>' }}"
        bos_token_id = None

        def get_vocab(self):
            return {"a": 0}

        def decode(self, tokens):
            return "".join(["a", "<think>", "</think>"][token] for token in tokens)

    vocabulary = Vocabulary(Tokenizer(), 0, False)
    tags = vocabulary.thinking_tags
    assert tags == ("<think>", "</think>")
    assert [vocabulary.is_inside(tags, tokens) for tokens in ([0], [0, 1], [1, 0, 2])] == [False, True, False]


def test_a_run_by_turn(chat_model, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    talk = [("user", "the old dog"), ("assistant", "sees a tree"), ("user", "the cat"), ("assistant", "sees a house")]
    messages = [{"role": role, "content": text} for role, text in talk]
    rows.write_text((json.dumps({"messages": messages}) + "\n") * 2)
    words = [f"target={chat_model}", "draft=random", f"task={rows}", "task.each_turn=true", "engine=eager"]
    more = ["dtype=float32", "max_new_tokens=6", "warmup=0", f"results={tmp_path}"]
    assert main(["run", *words, *more]) == 0
    capsys.readouterr()
    assert main(["results", "--by", "turn", f"--results={tmp_path}", "--format=json"]) == 0
    assert [(row["group"], row["prompts"]) for row in json.loads(capsys.readouterr().out)] == [("1", 2), ("2", 2)]
    assert main(["results", "--by", "phase", f"--results={tmp_path}"]) == 0
    assert "no run with completions that think" in capsys.readouterr().out
    assert main(["run", *words, *more, "task.chat_template=false", "limit=2"]) == 0
