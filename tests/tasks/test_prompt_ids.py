"""Prompts that a file gives as token ids are read as they are, as certify reads them."""

import json
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.records.frame import Records
from specbench.text.tokenizer import load_tokenizer

RUN = ["run", "target=gpt-mini", "draft=lookup", "max_new_tokens=6", "warmup=0", "dtype=float32"]


def rows(folder: Path, *found: object) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in found))
    return f"task={file}"


def test_a_prompt_of_token_ids_is_that_of_the_same_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vocabulary = load_tokenizer(ModelConfig(name="gpt-mini", shipped="gpt-mini"), "target")
    text = "One day a girl went to the park"
    ids = list(vocabulary.prompt(text, "", 512).prefix)
    written = []
    given = ({"prompt": text}, {"prompt_token_ids": ids}, {"prompt": ids}, {"prompt": text, "prompt_ids": ids})
    for number, row in enumerate(given):
        results = tmp_path / str(number)
        assert main([*RUN, rows(tmp_path, row), f"results={results}"]) == 0
        records = Records(results)
        (run,) = records.all_runs.to_dict("records")
        (prompt,) = records.whole(run["run_id"])["prompts"]
        assert prompt["prompt"].strip() == text
        written.append(prompt["baseline"].tokens)
        assert ("given as token ids" in capsys.readouterr().err) == (number > 0)
    assert all(one == written[0] for one in written)


def test_token_ids_are_never_cut_and_get_no_token_added(tmp_path: Path) -> None:
    assert main([*RUN, rows(tmp_path, {"prompt_token_ids": [17] * 40}), "task.max_source_tokens=8",
                 f"results={tmp_path}/r"]) == 0  # fmt: skip
    (run,) = Records(tmp_path / "r").all_runs.to_dict("records")
    (prompt,) = Records(tmp_path / "r").whole(run["run_id"])["prompts"]
    assert prompt["prompt_tokens"] == 40


@pytest.mark.parametrize(
    ("row", "words", "said"),
    [
        ({"prompt_token_ids": [1, "a"]}, [], "rows.jsonl, line 1: field 'prompt_token_ids' holds 'a', not a token id"),
        ({"prompt_token_ids": []}, [], "rows.jsonl, line 1: the prompt has no token"),
        ({"prompt_token_ids": [10**6]}, [], "row 1: token 1000000 in its prompt, and target=gpt-mini has"),
        ({"prompt_token_ids": [5, 6]}, ["context=64"], "context=64: prompts of token ids are read as they are"),
        ({"prompt_token_ids": [5, 6]}, ["task.prefix=a"], "is read as it is; set task.prefix="),
    ],
)
def test_what_is_no_prompt_is_one_line(
    row: object, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, rows(tmp_path, row), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
