"""Choices that share a file are picked, changed, swept and listed as those with a file of their own."""

import json
from pathlib import Path

import pytest
import yaml

from specbench.cli import main
from specbench.compose.hydra_app import composed_config, jobs_of
from specbench.config.paths import conf_dir
from specbench.config.schema import RunConfig
from specbench.train.recipe_schema import Recipe

Capture = pytest.CaptureFixture[str]


def test_conf_has_few_files() -> None:
    assert sum(file.is_file() for file in conf_dir().rglob("*")) <= 70


def test_a_named_draft_takes_keys_of_its_kind() -> None:
    config = composed_config(RunConfig, ["draft=retrieval-grow", "draft.match=4"], "run")
    assert (config.draft.kind, config.draft.name) == ("retrieval", "retrieval-grow")
    assert (config.draft.grow, config.draft.match) == (True, 4)
    parts = composed_config(RunConfig, ["draft=cascade", "draft@draft.inner=lookup", "draft.via.path=x"], "run").draft
    assert (parts.inner.kind, parts.via.path, parts.via.shipped) == ("lookup", "x", "t5-nano")
    heads = composed_config(RunConfig, ["draft=medusa", "target=gpt-mini"], "run").draft
    assert heads.shipped == "gpt-mini-medusa"


def test_drafts_are_swept_with_a_key_of_theirs() -> None:
    jobs = [job.required() for job in jobs_of(["draft=retrieval,retrieval-grow", "draft.match=2,3"])]
    assert [(one.draft.name, one.draft.match) for one in jobs] == [
        (name, match) for name in ("retrieval", "retrieval-grow") for match in (2, 3)
    ]


def test_a_draft_file_of_ones_own_extends_one_of_the_package(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "mine.yaml").write_text("defaults: [retrieval, _self_]\nname: mine\nmatch: 3\nnote: my own\n")
    (tmp_path / "draft" / "lookup.yaml").write_text("name: lookup\nkind: suffix\nnote: in place of the package's\n")
    folder = ["--config-dir", str(tmp_path)]
    jobs = [job.required() for job in jobs_of(["draft=mine,lookup,bigram"], folder)]
    assert [(one.draft.name, one.draft.kind) for one in jobs] == [
        ("mine", "retrieval"), ("lookup", "suffix"), ("bigram", "bigram"),
    ]  # fmt: skip
    assert jobs[0].draft.match == 3
    assert main(["list", "draft", "--format", "json", *folder]) == 0
    notes = {row["name"]: row["note"] for row in json.loads(capfd.readouterr().out)}
    assert (notes["mine"], notes["lookup"]) == ("my own", "in place of the package's") and "bigram" in notes


def test_a_name_that_is_none_is_answered_with_those_that_are(capfd: Capture) -> None:
    assert main(["run", "draft=medussa"]) == 2
    assert "draft=medussa: no such draft; did you mean medusa" in capfd.readouterr().err
    assert main(["run", "tree=sequoya"]) == 2
    assert "tree=sequoya: no such tree; did you mean sequoia" in capfd.readouterr().err


def test_a_stage_of_a_recipe_is_a_recipe() -> None:
    entry = yaml.safe_load((conf_dir() / "recipe" / "t5-mini-medusa.yaml").read_text())["stages"]["first"]
    stage = composed_config(Recipe, ["recipe=t5-mini-medusa-first", "optim.lr=0.5"], "train")
    assert (stage.name, stage.output, stage.takes) == (
        "t5-mini-medusa-first", "models/t5-mini-medusa-first", entry["takes"],
    )  # fmt: skip
    assert stage.distill.target == "models/t5-mini-long" and stage.optim.lr == 0.5
    whole = composed_config(Recipe, ["recipe=t5-mini-medusa"], "train")
    assert whole.distill.start_from == stage.output


def test_what_a_recipe_continues_from_is_a_stage_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.config.recipes import made_by, stages

    names = [name for name, _ in stages()]
    assert "t5-mini-long" in names and "t5-nano-first" in names
    assert all(f"specbench train recipe={name}" in made_by(f"models/{name}") for name in names)
