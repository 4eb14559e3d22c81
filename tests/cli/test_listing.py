"""`specbench list`: what is usable now stands first, and the rest says what it needs."""

import contextlib
import csv
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.cli import main
from specbench.cli.choices import GROUPS, NEEDS, choices
from specbench.config.catalogue import choice_names
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.paths import conf_dir
from specbench.report.paper import experiment

Capture = pytest.CaptureFixture[str]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows_of() -> Callable[[str], Rows]:
    """`specbench list GROUP`, each group composed once."""

    @cache
    def rows(group: str) -> Rows:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(["list", group, "--format", "json"]) == 0
        found: Rows = json.loads(out.getvalue())
        return found

    return rows


def listed(capfd: Capture, *argv: str) -> Rows:
    assert main(["list", *argv, "--format", "json"]) == 0
    rows: Rows = json.loads(capfd.readouterr().out)
    return rows


@pytest.mark.full
@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_says_what_it_needs_and_what_it_is(group: str, rows_of: Callable[[str], Rows]) -> None:
    rows = rows_of(group)
    assert {row["name"] for row in rows} == set(choice_names(group))
    assert [row["name"] for row in rows if not row["note"]] == []
    needs = [NEEDS.index(row["needs"]) for row in rows]
    assert needs == sorted(needs)


UNMEASURED = {"random", "merged", "window"}  # merged is of trees, window of long contexts


def test_every_kind_of_draft_is_listed_documented_and_in_the_table_of_all() -> None:
    listed = {conf["kind"] for name in choice_names("draft") if "kind" in (conf := _choice(name))}
    assert set(DRAFT_KINDS) - {"model"} == listed - {"model"}
    page = (conf_dir().parent / "docs" / "choosing.md").read_text(encoding="utf-8")
    table = page.partition("## All drafts")[2].partition("All are lossless")[0]
    assert [kind for kind in DRAFT_KINDS if kind not in ("model", "random") and f"`{kind}`" not in table] == []
    rows = {name.replace("3-gram", "ngram") for row in experiment("beyond")["rows"] for name in row["drafts"]}
    missing = {kind for kind in DRAFT_KINDS if not any(name == kind or name.startswith(f"{kind}-") for name in rows)}
    assert missing - {"model"} == UNMEASURED


def _choice(name: str) -> dict[str, Any]:
    drafts: dict[str, dict[str, Any]] = yaml.safe_load((conf_dir() / "drafts.yaml").read_text(encoding="utf-8"))
    return drafts.get(name, {})


def read_and_composed(group: str, names: list[str]) -> list[tuple[object, object]]:
    """Each choice as its files say, and as Hydra composes it."""
    from specbench.cli import choices as read

    composed = (
        read._contents(group, names, []) if group != "target" else {name: read._target(name, []) for name in names}
    )
    return [(read._read(group, name, [conf_dir()]), composed[name]) for name in names]


@pytest.mark.full
@pytest.mark.parametrize("group", ["draft", "task"])
def test_what_the_files_say_is_what_hydra_composes(group: str) -> None:
    names = choice_names(group)
    for read, composed in read_and_composed(group, names):
        assert read == composed


@pytest.mark.parametrize("name", ["gpt-mini", "llama3.1-8b", "flan-t5-base", "random-t5-xxl"])
def test_what_a_targets_files_say_is_what_hydra_composes(name: str) -> None:
    [(read, composed)] = read_and_composed("target", [name])
    assert read == composed


@pytest.mark.parametrize("text", ["defaults:\n  - optional other: x\n", "# @package _global_\nname: own\n"])
def test_a_file_that_uses_more_of_hydra_is_left_to_hydra(text: str, tmp_path: Path) -> None:
    from specbench.cli import choices as read

    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "own.yaml").write_text(text)
    assert read._read("draft", "own", [tmp_path]) is None


@pytest.mark.full
def test_what_each_needs(rows_of: Callable[[str], Rows]) -> None:
    rows = {(row["group"], row["name"]): row for group in GROUPS for row in rows_of(group)}
    assert rows["target", "t5-mini"]["needs"] == "now" and rows["target", "t5-mini"]["default_task"] == "ende-mini"
    assert rows["target", "random-t5-xxl"]["needs"] == "now"
    assert (rows["target", "t5-xxl"]["needs"], rows["target", "t5-xxl"]["origin"]) == ("download", "google-t5/t5-11b")
    assert rows["target", "gpt-97m"]["origin"] == "specbench train recipe=gpt-97m"
    assert rows["target", "hub"]["needs"] == "options"
    assert rows["draft", "cascade"]["needs"] == "now"
    for draft in ("medusa", "hydra", "eagle", "pass"):
        row = rows["draft", draft]
        assert (row["needs"], row["origin"]) == ("now", "ships for gpt-mini and t5-mini")
    assert rows["draft", "specdec"]["origin"] == "ships for t5-mini"
    for draft in ("dflash", "dspark", "pard", "peagle"):
        assert (rows["draft", draft]["needs"], rows["draft", draft]["origin"]) == ("now", "ships for gpt-mini")
    assert rows["task", "sum-mini"]["note"].startswith("Passages that ship with the project")
    assert rows["accept", "exact"]["needs"] == "now"
    assert (rows["recipe", "gpt-97m"]["needs"], rows["recipe", "gpt-97m"]["time"][:13]) == ("download", "about 8 hours")
    assert rows["recipe", "t5-nano-ende"]["needs"] == "now"  # its rows ship
    assert rows["experiment", "online-mini-weak"]["origin"] == "specbench train recipe=t5-nano-ende"
    assert rows["recipe", "distill"]["origin"] == "data.path=[FILE,...] distill.target=FOLDER"
    assert rows["experiment", "table2"]["needs"] == "download" and "3 hours" in rows["experiment", "table2"]["time"]
    assert rows["experiment", "table2-mini"]["needs"] == "now" and rows["experiment", "figure1"]["needs"] == "training"


def test_a_draft_whose_package_is_missing_is_not_usable_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.cli.choices.find_spec", lambda _: None)
    (retrieval,) = (choice for choice in choices("draft", None) if choice.name == "retrieval")
    assert (retrieval.needs, retrieval.origin) == ("package", "pip install pydivsufsort")


# Each way of naming a folder with one group that is composed and one that is read.
OWN = {
    "target": ("name: mine\nshipped: t5-mini\nnote: data.path=[file] in brackets\n", "config_dir={}"),
    "accept": ("# needs pip install 'specbench-toolkit[odd]'\nrule: odd\n", "config_dir={}"),
    "draft": ("name: mine\nshipped: t5-mini\n", "--config-dir={}"),
    "tree": ("# A tree of mine.\nshape: none\n", "--config-dir={}"),
    "experiment": ("# @package _global_\n# A preset of mine.\ngamma: 3\n", "--config-dir {}"),
}


@pytest.mark.full
@pytest.mark.parametrize("group", OWN)
def test_own_choices_are_listed_with_ours(group: str, tmp_path: Path, capfd: Capture) -> None:
    text, way = OWN[group]
    (tmp_path / group).mkdir()
    (tmp_path / group / "mine.yaml").write_text(text)
    every = ["--all"] if group == "target" else []  # targets are grouped, without a line each
    assert main(["list", group, *every, *way.format(tmp_path).split()]) == 0
    out = capfd.readouterr().out
    assert "mine" in out and text.partition("\n")[0].removeprefix("# ")[:5] and "now" in out
    if group == "target":
        assert "data.path=[file] in brackets" in out
    if group == "accept":
        assert "'specbench-toolkit[odd]'" in out
    if group != "experiment":  # without the folder; what takes longest is left out
        assert "mine" not in [row["name"] for row in listed(capfd, group)]


def test_without_a_group_and_in_other_formats(capfd: Capture) -> None:
    assert main(["list", "--all"]) == 0
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


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("t5-nano", "'specbench list draft --all' and 'specbench list recipe --all' describe it"),
        ("mine", "mine: is a choice, not a group; 'specbench list task --all' describes it"),
        ("drafting", "drafting: no such group; choose from draft, target, task"),
    ],
)
def test_a_name_in_the_place_of_a_group_is_told_its_groups(
    word: str, said: str, tmp_path: Path, capfd: Capture
) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text("name: mine\npath: rows.jsonl\n")
    assert main(["list", word, "--config-dir", str(tmp_path)]) == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1


def test_a_list_is_short_and_all_is_there_on_request(capfd: Capture) -> None:
    """306 lines, in which the models that ship stood between the shapes of random weights."""
    assert main(["list"]) == 0
    short = capfd.readouterr().out.splitlines()
    assert len(short) < 60 and short[0] == "targets"
    assert short[1].split() == ["ships", "gpt-mini,", "t5-mini"]
    kinds = [line[:17].strip() for line in short[1 : short.index("drafts")] if line[2] != " "]
    assert kinds == ["ships", "chat models", "T5 and GPT", "random weights", "others"]
    names = " ".join(short)
    assert all(name in names for group in ("target", "draft", "task") for name in choice_names(group) if name != "hub")
    assert main(["list", "target", "--all"]) == 0
    assert "Qwen 2.5 Instruct, 7.6B parameters." in " ".join(capfd.readouterr().out.split())


def test_the_short_list_says_where_what_a_choice_needs_is_named(capfd: Capture) -> None:
    assert main(["list"]) == 0
    meanings = [line for line in capfd.readouterr().out.splitlines() if line.startswith(("options: ", "training: "))]
    assert len(meanings) == 2 and all("specbench list --all" in line for line in meanings)


def test_the_help_of_figures_names_all_of_them(capfd: Capture) -> None:
    from specbench.report.figures import FIGURES

    assert main(["figures", "--help"]) == 0
    said = capfd.readouterr().out
    assert not [name for name in FIGURES if name not in said and not name.startswith("figure")]


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_understood_in_the_plural(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`list drafts` was 'invalid choice', and how a group is spelt is no reader's concern."""
    assert [main(["list", word]) for word in (group, f"{group}s")] == [0, 0]
    said = capsys.readouterr().out
    assert said[: len(said) // 2] == said[len(said) // 2 :]
