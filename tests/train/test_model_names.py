"""A model is named in a recipe as in `specbench run`: NAME, ./FOLDER, OWNER/NAME."""

from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.config.places import model_at
from specbench.errors import UserError
from specbench.train.recipe_schema import Recipe

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes that the command line asks to train; none is."""
    found: list[Recipe] = []
    monkeypatch.setattr("specbench.train.recipe.train", lambda one, composed_from: found.append(one) or Path("out"))
    return found


@pytest.mark.parametrize(
    ("word", "target", "revision"),
    [
        ("gpt-mini", "shipped:models/gpt-mini", None),
        ("shipped:models/gpt-mini", "shipped:models/gpt-mini", None),
        ("t5-small", "google-t5/t5-small", "df1b051c49625cf57a3d0d8d3863ed4d13564fe4"),
        ("some/model", "some/model", None),
        ("some/model@main", "some/model", "main"),
        ("./gpt2", "./gpt2", None),
        ("gpt2/", "./gpt2", None),
    ],
)
def test_a_target_is_named_as_in_run(
    word: str, target: str, revision: str | None, trained: list[Recipe], folders: dict[str, Path], capfd: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(folders["gpt2"].parent)
    assert main(["train", "recipe=medusa", f"distill.target={word}", "data.path=[x.jsonl]"]) == 0, (
        capfd.readouterr().err
    )
    (recipe,) = trained
    assert (recipe.distill.target, recipe.distill.revision) == (target, revision)


@pytest.mark.parametrize("key", ["distill.target", "model.start_from", "tokenizer.start_from", "distill.start_from"])
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("gpt-min", "=gpt-min: no such model; give"),
        ("llama", "=llama: no such model; for the folder of this name write KEY=./llama"),
    ],
)
def test_a_name_of_nothing_is_refused_at_once(
    key: str, word: str, said: str, trained: list[Recipe], folders: dict[str, Path], capfd: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(folders["gpt2"].parent)
    monkeypatch.setattr("socket.create_connection", None)  # no hub is asked
    target = [] if key == "distill.target" else ["distill.target=gpt-mini"]
    assert main(["train", "recipe=medusa", *target, f"{key}={word}", "data.path=[x.jsonl]"]) == 2
    err = capfd.readouterr().err
    assert f"specbench: {key}{said.replace('KEY', key)}" in err and err.count("\n") == 1 and not trained
    if word == "gpt-min":
        assert "gpt-mini" in err and "./FOLDER" in err


@pytest.mark.parametrize("key", ["distill.target", "model.start_from", "tokenizer.start_from", "distill.start_from"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_model_that_a_recipe_writes_is_asked_of_no_hub(
    key: str, more: tuple[str, ...], tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specbench.engine.weights.load.hub_is_reachable", lambda: False)
    target = [] if key == "distill.target" else ["distill.target=gpt-mini"]
    assert main(["train", "recipe=medusa", *target, f"{key}=models/gpt-97m", "data.path=[x.jsonl]", *more]) == 2
    err = capfd.readouterr().err
    assert f"{key}=models/gpt-97m: does not exist yet; specbench train recipe=gpt-97m (about 8 hours" in err


@pytest.mark.parametrize(
    ("file", "word", "said"),
    [
        ("m.gguf", "./m.gguf", "m.gguf' is a GGUF file, which training does not read"),
        ("lora/adapter_config.json", "./lora", "lora' is an adapter, which training does not read"),
        ("other/config.json", "./other", "no config can be loaded from '"),
    ],
)
def test_a_target_that_cannot_be_trained_on_is_named_before_its_rows(
    file: str, word: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    """Rows of running text were said to lack the field 'en', which only a T5's rows have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("{}")
    (tmp_path / "rows.jsonl").write_text('{"text": "a dog runs"}\n')
    assert main(["train", "recipe=distill", f"distill.target={word}", "data.path=[rows.jsonl]", "output=out"]) == 2
    assert said in capfd.readouterr().err


def test_choices_of_a_config_folder_are_models_too(trained: list[Recipe], tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine.yaml").write_text("name: mine\nshipped: gpt-mini\n")
    words = ["recipe=medusa", "distill.target=mine", "data.path=[x.jsonl]", "--config-dir", str(tmp_path)]
    assert main(["train", *words]) == 0, capfd.readouterr().err
    assert trained[0].distill.target == "shipped:models/gpt-mini" and trained[0].task == "lm"


def test_a_name_means_the_same_model_for_every_command() -> None:
    from specbench.compose.hydra_app import composed_config
    from specbench.config.schema import RunConfig

    def keys(model: Any) -> tuple[Any, ...]:
        return model.path, model.hub, model.revision, model.shipped

    for word in ("gpt-mini", "t5-large", "some/model@main", "/some/folder", "./here"):
        config = composed_config(RunConfig, [f"target={word}", "draft=lookup", "task=lm-mini"], "run")
        assert keys(config.target) == keys(model_at(word, "distill.target"))
    with pytest.raises(UserError, match="no such model"):
        model_at("t5-mni", "distill.target")
