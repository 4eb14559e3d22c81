"""A prompt that is longer than task.max_source_tokens is cut, and that is said and kept."""

from pathlib import Path

import pytest

from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.records import store
from specbench.text.tokenizer import load_tokenizer

Folders = dict[str, Path]
TEXT = "the old dog sees a tree"


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_only_a_text_that_does_not_fit_is_cut(kind: str, folders: Folders) -> None:
    vocabulary = load_tokenizer(ModelConfig(path=str(folders[kind])), "target")
    whole = vocabulary.prompt(TEXT, "", 100)
    assert not whole.truncated
    length = len(whole.source) or len(whole.prefix)
    assert vocabulary.prompt(TEXT, "", length) == whole  # as long as allowed
    less = vocabulary.prompt(TEXT, "", length - 1)
    assert less.truncated and (len(less.source) or len(less.prefix)) == length - 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("most", "said"), [(9, "3 of 3 prompts were cut to 9 tokens (task.max_source_tokens)"), (99, "")]
)
def test_a_run_says_how_many(
    most: int, said: str, folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main([
        "run", f"target.path={folders['t5']}", "draft=random", "task=ende", f"task.path={folders['rows']}",
        f"results={tmp_path}", "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=4",
        f"task.max_source_tokens={most}", "warmup=0",
    ])  # fmt: skip
    err = capfd.readouterr().err
    (record,) = (store.read(file) for file in store.runs_folder(tmp_path).glob("*.json"))
    assert code == 0 and err.count("were cut") == bool(said) and said in err
    assert record["summary"]["prompts_cut"] == (3 if said else 0)
