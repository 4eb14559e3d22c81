"""What is given as a model or as prompts is read, or named for what it is; free text needs no second quotes."""

import json
import re
from pathlib import Path

import pytest

from specbench.cli.overrides import read
from specbench.config.model import ModelConfig, check_model, not_a_model
from specbench.config.paths import shipped
from specbench.config.schema import RunConfig, TaskConfig
from specbench.config.verbs import LOAD, VALIDATE, refused
from specbench.engine.weights.load import load_model
from specbench.errors import UserError
from specbench.tasks import Task
from specbench.text.vocabulary import Vocabulary
from tests.support.calls import refusal

Capture = pytest.CaptureFixture[str]
ROWS = [{"prompt": "a dog", "n": 1}, {"prompt": "a cat", "n": 2}]


def _prompts(path: Path) -> list[str]:
    task = Task(TaskConfig(name="prompts", source_field="prompt", path=str(path)))
    return [example.prompt for example in task.examples(None)]


def test_prompts_from_parquet_a_saved_data_set_and_a_json_array(tmp_path: Path) -> None:
    import datasets

    made = datasets.Dataset.from_list(ROWS)
    made.to_parquet(tmp_path / "rows.parquet")
    made.save_to_disk(tmp_path / "saved")
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=2))
    (tmp_path / "folder").mkdir()
    made.to_parquet(tmp_path / "folder" / "train-00000.parquet")
    for name in ("rows.parquet", "saved", "rows.json", "folder"):
        assert _prompts(tmp_path / name) == ["a dog", "a cat"], name
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "splits")
    with pytest.raises(UserError, match=r"holds several splits \(test, train\); name one of them, .*/splits/test"):
        _prompts(tmp_path / "splits")
    assert _prompts(tmp_path / "splits" / "test") == ["a dog", "a cat"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.parquet", "no table", "rows.parquet: cannot be read as parquet"),
        ("rows.json", '[{"prompt": "a"},\n 3]', "rows.json, row 2: not a JSON object but the number 3; write a row as"),
        ("rows.json", '[{"prompt": "a"},\n {', "rows.json, line 2: not a JSON array"),
    ],
)
def test_what_only_looks_like_rows_is_named(name: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=said.replace("[", r"\[")):
        _prompts(tmp_path / name)


@pytest.mark.parametrize("name", ["config.json", "adapter_config.json"])
def test_a_models_folder_as_prompts_is_named(name: str, tmp_path: Path) -> None:
    """Line 1 of its config.json was said to be no JSON object."""
    (tmp_path / name).write_text("{\n}")
    with pytest.raises(UserError, match="is the folder of a model, not rows of text"):
        _prompts(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("model.gguf", "GGUF", "holds GGUF files; give one of them: "),
        (
            "adapter_config.json",
            '{"peft_type": "IA3"}',
            "is an adapter of the kind IA3, and only LoRA adapters are merged",
        ),
    ],
)
def test_folders_that_are_no_model_are_named(
    file: str, content: str, said: str, tmp_path: Path, capfd: Capture
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / file).write_text(content)
    for key in ("target", "draft"):
        assert said in refusal(["run", f"{key}={tmp_path / 'm'}", f"results={tmp_path}"], capfd)


def test_a_trained_draft_is_no_model_and_its_kind_is_named() -> None:
    kinds = ("eagle", "mtp", "peagle", "medusa", "hydra", "blockwise", "pass", "dflash", "dspark")
    for kind in kinds:
        said = not_a_model(shipped("models", f"gpt-mini-{kind}" if kind != "hydra" else "t5-mini-hydra"))
        assert said is not None and f"holds a trained draft, not a model: draft={kind}" in said
    for model in ("gpt-mini", "gpt-nano", "t5-mini", "t5-nano", "gpt-mini-pard"):
        check_model("draft", ModelConfig(path=str(shipped("models", model))))


def test_quantised_weights_of_the_hub_are_named_before_they_load(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    config = type("Config", (), {"quantization_config": {"quant_method": "fp8"}})()
    monkeypatch.setattr("specbench.engine.weights.load.shape_of", lambda model, key: config)
    words = Vocabulary.__new__(Vocabulary)
    words.is_encoder_decoder = False
    with pytest.raises(UserError, match="target: b holds fp8 weights, which are not supported"):
        load_model(ModelConfig(hub="a/b"), "target", words, torch.float32, torch.device("cpu"))


def test_text_needs_no_quotes_within_the_quotes_of_the_shell() -> None:
    """The page's own example, task.template='Context: {context} Question: {question}', could not be read."""
    for key, text in (
        ("task.template", "Context: {context} Question: {question}"),
        ("task.template", "{question}"),
        ("task.template", "it's {question}"),
        ("sampling.regex", "[a-z]+ (yes|no)"),
    ):
        (word,) = read([f"{key}={text}"], RunConfig).overrides
        escaped = text.replace("'", "\\'")
        assert word == f"{key}='{escaped}'"
    for word in ("task.template=null", "task.template='{a} b'", "task.prefix=translate"):
        assert read([word], RunConfig).overrides == [word]


@pytest.mark.parametrize("verb", ["alpha", "recommend", LOAD, VALIDATE])
def test_help_lists_no_key_that_is_refused(verb: str, capfd: Capture) -> None:
    from specbench.cli import main

    assert main([*verb.split(), "--help"]) == 0
    printed = capfd.readouterr().out
    (also,) = printed.split("as in `specbench run --help`: ")[1:]
    named = {name.strip() for name in also.split("\n\n")[0].replace("\n", " ").split(",")}
    named |= set(re.findall(r"^  ([a-z_.]+)=", printed, re.MULTILINE))  # those that it explains itself
    assert {"target", "draft", "limit"} <= named and not named & refused(verb)
    assert "simulate" not in named
