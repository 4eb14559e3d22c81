"""`specbench list`: what is usable now stands first, and the rest says what it needs."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.cli.choices import GROUPS, NEEDS, choices
from specbench.config import conf_dir

Capture = pytest.CaptureFixture[str]


def listed(capfd: Capture, *argv: str) -> list[dict[str, Any]]:
    assert main(["list", *argv, "--format", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capfd.readouterr().out)
    return rows


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_says_what_it_needs_and_what_it_is(group: str, capfd: Capture) -> None:
    rows = listed(capfd, group)
    assert {row["name"] for row in rows} == {file.stem for file in (conf_dir() / group).glob("*.yaml")}
    assert [row["name"] for row in rows if not row["note"]] == []
    needs = [NEEDS.index(row["needs"]) for row in rows]
    assert needs == sorted(needs)


def test_what_each_needs(capfd: Capture) -> None:
    rows = {(row["group"], row["name"]): row for group in GROUPS for row in listed(capfd, group)}
    assert rows["target", "t5-mini"]["needs"] == "now" and rows["target", "t5-mini"]["default_task"] == "ende-mini"
    assert rows["target", "random-t5-xxl"]["needs"] == "now"
    assert (rows["target", "t5-xxl"]["needs"], rows["target", "t5-xxl"]["origin"]) == ("download", "google-t5/t5-11b")
    assert rows["target", "gpt-97m"]["origin"] == "specbench train recipe=gpt-97m"
    assert rows["target", "hub"]["needs"] == "keys"
    assert rows["draft", "cascade"]["needs"] == "now"
    for draft in ("medusa", "hydra", "eagle"):
        row = rows["draft", draft]
        assert (row["needs"], row["origin"]) == ("now", "ships for gpt-mini and t5-mini")
    assert rows["draft", "specdec"]["origin"] == "ships for t5-mini"
    assert rows["task", "sum-mini"]["note"].startswith("Passages that ship with the project")
    assert rows["accept", "exact"]["needs"] == "now"
    assert (rows["recipe", "gpt-97m"]["needs"], rows["recipe", "gpt-97m"]["time"][:13]) == ("download", "about 8 hours")
    assert rows["recipe", "distill"]["origin"] == "data.path=[FILE,...] distill.target=FOLDER"
    assert rows["experiment", "table2"]["needs"] == "download" and "3 hours" in rows["experiment", "table2"]["time"]
    assert rows["experiment", "table2-mini"]["needs"] == "now" and rows["experiment", "figure1"]["needs"] == "training"


def test_a_draft_whose_package_is_missing_is_not_usable_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.cli.choices.find_spec", lambda _: None)
    (retrieval,) = (choice for choice in choices("draft", None) if choice.name == "retrieval")
    assert (retrieval.needs, retrieval.origin) == ("package", "pip install pydivsufsort")


def test_own_choices_are_listed_with_ours(tmp_path: Path, capfd: Capture) -> None:
    for group, text in (
        ("target", "name: mine\nshipped: t5-mini\nnote: data.path=[file] in brackets\n"),
        ("accept", "# needs pip install 'specbench-toolkit[odd]'\nrule: odd\n"),
        ("experiment", "# @package _global_\n# A preset of mine.\ngamma: 3\n"),
    ):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(text)
        for argv in (["--config-dir", str(tmp_path)], [f"config_dir={tmp_path}"]):
            assert main(["list", group, *argv]) == 0
            out = capfd.readouterr().out
            assert "mine" in out and text.partition("\n")[0].removeprefix("# ")[:5] and "now" in out
        assert "mine" not in [row["name"] for row in listed(capfd, group)]
    (row,) = (row for row in listed(capfd, "target", f"--config-dir={tmp_path}") if row["name"] == "mine")
    assert row["note"] == "data.path=[file] in brackets"
    assert main(["list", "accept", "--config-dir", str(tmp_path)]) == 0
    assert "'specbench-toolkit[odd]'" in capfd.readouterr().out


def test_without_a_group_and_in_other_formats(capfd: Capture) -> None:
    assert main(["list"]) == 0
    out = capfd.readouterr().out
    for name in (
        "t5-mini",
        "google-t5/t5-11b",
        "bigram",
        "lm1b",
        "download: fetched from the hub",
        "specbench list recipe",
    ):
        assert name in out
    assert main(["list", "task", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert {"ende", "ende-mini"} <= {row["name"] for row in rows}
    assert main(["list", "models"]) == 2
    assert capfd.readouterr().err.count("\n") == 1
