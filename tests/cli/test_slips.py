"""What a newcomer mistypes: a command, an option, a home, a number; each answer is one line that says what to type."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from specbench.cli import main
from specbench.cli.overrides import read
from specbench.config.schema import RunConfig
from specbench.config.server import ServerConfig, check_server
from specbench.config.verbs import CertifyConfig
from specbench.errors import MachineError, UserError, alike, closest_first
from specbench.hub import commit_of
from specbench.interop.certify.setup import Setup, generator_of
from tests.support.made_records import make

Capture = pytest.CaptureFixture[str]
LONG = "x" * 300  # more than a file's name may have
HUGE = 10**20


def said(words: list[str], code: int, capfd: Capture) -> str:
    """What a command prints on stderr, one line, when it ends with `code`."""
    assert main(words) == code
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and err.startswith("specbench: "), err
    return err.removeprefix("specbench: ").strip()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("rnu", "run"), ("Run", "run"), ("swep", "sweep"), ("alfa", "alpha"), ("shwo", "show"), ("serve", "server"),
     ("result", "results"), ("sertify", "certify"), ("tain", "train"), ("RECOMEND", "recommend")],
)  # fmt: skip
def test_a_misspelt_command_names_the_one_that_is_meant(typed: str, meant: str, capfd: Capture) -> None:
    assert said([typed], 2, capfd) == f"{typed}: no such command; did you mean {meant}? 'specbench --help' lists all"


@pytest.mark.parametrize("words", [["help", "show"], ["--help", "show"], ["-h", "show"]])
def test_help_before_a_command_is_the_help_of_that_command(words: list[str], capfd: Capture) -> None:
    assert main(["show", "--help"]) == 0
    expected = capfd.readouterr().out
    assert "--prompt" in expected
    assert main(words) == 0 and capfd.readouterr().out == expected


def test_help_of_no_command(capfd: Capture) -> None:
    assert said(["help", "shwo"], 2, capfd).startswith("shwo: no such command; did you mean show?")


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("results --groupby draft", "--groupby: no such option; did you mean --group-by?"),
        ("results grup_by=draft", "--grup-by: no such option; did you mean --group-by?"),
        ("show last --promt 3", "--promt: no such option; did you mean --prompt?"),
        ("explain last --for-speed 2", "--for-speed: no such option; did you mean --for-speedup?"),
        ("figures limit=3", "--limit: no such option; the options are --help, --results, --config-dir, --format,"),
        ("explain first second", "second: a word too many ('specbench explain --help' tells more)"),
        ("read page.txt --gama 3", "--gama: no such option; did you mean --gamma?"),
    ],
)
def test_a_misspelt_option_of_a_command_that_reads_records(line: str, answer: str, capfd: Capture) -> None:
    assert said(line.split(), 2, capfd).startswith(answer)


def test_names_in_order_and_those_alike() -> None:
    assert alike("gama", ["seed", "gamma"]) == ["gamma"] and alike("zzz", ["seed", "gamma"]) == []
    assert closest_first("gama", ["seed", "gamma", "task"]) == ["gamma", "seed", "task"]


def test_a_home_in_front_of_any_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for words in (["results", "results=~/mine"], ["results", "--results=~/mine"]):
        assert main(words) == 0
        assert f"{tmp_path}/mine/runs" in capfd.readouterr().out
    assert read(["plain=~/served.jsonl"], CertifyConfig).overrides == [f"plain={tmp_path}/served.jsonl"]
    assert read(["--picture=~/a.svg"], RunConfig, valued=("picture",)).options["picture"] == f"{tmp_path}/a.svg"
    assert read(["--config-dir=~/own"], RunConfig).switches == ["--config-dir", f"{tmp_path}/own"]


@pytest.mark.parametrize("word", ["target=~nobody-has-this/model", "task=~nobody-has-this/rows.jsonl"])
def test_a_home_of_nobody_is_a_place_that_is_not_there(word: str, capfd: Capture) -> None:
    option, _, place = word.partition("=")
    answer = said(["run", word], 2, capfd)
    assert answer.startswith(f"{option}.path={place}: must be a f") and answer.endswith("there is none of that name")


@pytest.mark.parametrize(
    "words",
    [["show", LONG], ["explain", LONG], ["results", LONG], ["compare", LONG, "last"],
     ["run", f"target=./{LONG}"], ["run", f"task=./{LONG}"], ["run", f"task.path={LONG}"],
     ["certify", LONG, "target=gpt-mini"], ["recommend", "--for", "vllm", "--from", LONG]],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)  # fmt: skip
def test_a_place_that_cannot_be_reached_is_one_line(words: list[str], capfd: Capture) -> None:
    assert "cannot be reached (File name too long)" in said(words, 1, capfd)


@pytest.mark.parametrize(
    ("word", "answer"),
    {
        f"seed={HUGE}": "must be a whole number of 64 bits",
        f"max_new_tokens={HUGE}": "must be a whole number of 64 bits",
        f"sampling.top_k={HUGE}": "must be a whole number of 64 bits",
        "limit=all": "must be a whole number: at least 1, or null for all",
        "seed=abc": "must be a whole number: at least 0",
        "sampling.temperature=hot": "must be a number: 0 (argmax), or from 1e-06 to 100",
    }.items(),
)
def test_a_number_that_no_record_could_hold_and_a_word_in_place_of_one(word: str, answer: str, capfd: Capture) -> None:
    assert said(["run", word], 2, capfd) == f"{word}: {answer}"


def test_certify_draws_with_any_seed_that_is_allowed() -> None:
    setup: Any = SimpleNamespace(device=torch.device("cpu"), config=CertifyConfig(seed=2**62))
    first, second = (torch.rand(1, generator=generator_of(cast(Setup, setup), number)) for number in (0, 1))
    assert first != second


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("run gamma=3,5 --dry-run", "gamma=3,5: a run takes one gamma; use specbench sweep gamma=3,5"),
        ("explain --draft draft=t5-nano,bigram", "draft=t5-nano,bigram: specbench explain takes one draft"),
    ],
)
def test_several_values_where_one_is_looked_at(line: str, answer: str, capfd: Capture) -> None:
    assert said(line.split(), 2, capfd).startswith(answer)


def test_dry_run_of_an_experiment_is_of_the_one_run_that_the_command_would_do(capfd: Capture) -> None:
    assert main(["run", "experiment=table2-mini", "--dry-run", "dtype=float32", "limit=2"]) == 0
    found = capfd.readouterr()
    assert "work: 2 prompts with and without the draft" in found.out
    assert "this is one of" in found.err and "--dry-run" not in found.err


def test_help_of_explain_with_an_option_of_its_own(capfd: Capture) -> None:
    assert main(["explain", "--draft", "--help"]) == 0
    assert "--for-speedup" in capfd.readouterr().out


def test_rows_that_only_the_hub_has_name_the_tasks_that_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.hub.hub_is_reachable", lambda: False)
    with pytest.raises(MachineError, match=r"task: o/nowhere is not .*; offline choices: task=ende-mini \| sum-mini"):
        commit_of("o/nowhere", None, "task", "dataset")


@pytest.mark.parametrize("seconds", [0, math.inf, math.nan, 1e12])
def test_a_timeout_that_no_socket_can_have(seconds: float) -> None:
    with pytest.raises(UserError, match=r"timeout=.*: must be above 0 and at most 1e6"):
        check_server(ServerConfig(url="http://127.0.0.1:9/v1", timeout=seconds))


def test_a_chain_has_no_tree_and_none_is_announced(tmp_path: Path, capfd: Capture) -> None:
    make(tmp_path, prompts=2)
    assert main(["show", "last", "--tree", "1", f"results={tmp_path}"]) == 2
    found = capfd.readouterr()
    assert "--tree 1: this pass drafted no tree" in found.err and "the tree of pass" not in found.out


def test_a_recipe_by_its_name_alone(capfd: Capture) -> None:
    assert said(["train", "eagle"], 2, capfd).startswith("eagle: name the recipe as recipe=eagle; ")
