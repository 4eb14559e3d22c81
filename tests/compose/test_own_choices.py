"""A folder of choices (`--config-dir`) is data, and so is the config of a record: no function is called, no variable of
this machine is read, and a file that is no such data is one line."""

import copy
import itertools
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.cli import main
from specbench.compose.to_schema import config_of_record
from tests.support.made_records import record

Capture = pytest.CaptureFixture[str]
PLAIN = "name: mine\nshipped: t5-mini\n"


def put(folder: Path, name: str, text: str) -> Path:
    file = folder / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


CALLBACK = "hydra: {callbacks: {x: {_target_: site.addsitedir, sitedir: SITE}}}\n"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise("abcdefghi")
)
# Group of the file, its text, and what is said of it.
REFUSED = {
    "a callback": ("target", f"# @package _global_\n{CALLBACK}target: {{name: mine, shipped: t5-mini}}\n", "@package"),
    "a callback without a package": ("target", PLAIN + CALLBACK, "sets nothing of Hydra"),
    "a callback of an experiment": ("experiment", f"# @package _global_\n{CALLBACK}gamma: 1\n", "hydra.callbacks"),
    "a callback by an escape": ("target", PLAIN + CALLBACK.replace("hydra:", r'"\x68ydra":'), "sets nothing of Hydra"),
    "a package of Hydra": ("target", f"# @package hydra.callbacks\n{PLAIN}", "@package hydra.callbacks"),
    "a part of Hydra's": ("target", "defaults: [{/model@_global_.hydra.job.env_set: other}]\n" + PLAIN, "Hydra"),
    "a choice of Hydra's": ("target", "defaults: [/hydra/callbacks/mine]\n" + PLAIN, "Hydra"),
    "variables": ("target", PLAIN + "hydra: {job: {env_set: {PYTHONPATH: x}}}\n", "sets nothing of Hydra"),
    "variables of an experiment": (
        "experiment", "# @package _global_\nhydra: {job: {env_set: {PYTHONPATH: x}}}\n", "hydra.job",
    ),
    "a launcher's command": (
        "experiment", "# @package _global_\nhydra: {launcher: {setup: [touch x]}}\n", "hydra.launcher",
    ),
    "a function": ("target", PLAIN + "note: {_target_: os.getcwd}\n", "calls no function"),
    "a variable": ("target", PLAIN + "note: ${oc.env:SECRET}\n", "only ${KEY} is replaced"),
    "a variable in a sweep": (
        "experiment", "# @package _global_\nhydra: {sweeper: {params: {limit: '${oc.env:SECRET}'}}}\n", "only ${KEY}",
    ),
    "a resolver by an interpolation": ("target", PLAIN + "hub: oc.env\nnote: ${${.hub}:SECRET}\n", "only ${KEY}"),
    "aliases": ("target", BOMB, "more than 10000 values"),
    "a tag": ("target", PLAIN + "note: !!python/object/apply:os.getcwd []\n", "the tag"),
    "an own tag": ("target", PLAIN + "note: !mine x\n", "the tag !mine"),
    "deep": ("accept", "rule: " + "[" * 3000 + "]" * 3000, "levels deep"),
    "deeper": ("target", "note: " + "[" * 100_000, ""),
    "no YAML": ("target", "name: [", "is not YAML"),
    "no date": ("target", PLAIN + "note: 2026-99-99\n", "is not YAML"),
    "no text": ("target", PLAIN + "note: \ud800\n", "UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_choice_that_is_more_than_data_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    group, text, said = REFUSED[name]
    monkeypatch.setenv("SECRET", "5ecret")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "evil.pth").write_text(f"import os; os.mkdir({str(tmp_path / 'executed')!r})\n")
    file = put(tmp_path, f"{group}/mine", "")
    file.write_bytes(text.replace("SITE", str(tmp_path / "site")).encode(errors="surrogatepass"))
    put(tmp_path, "model/other", "PYTHONPATH: x\n")
    before = sys.path[:]
    for verb in ("run", "sweep"):
        assert main([verb, "--config-dir", str(tmp_path), f"{group}=mine", "--cfg", "job"]) == 2
        out, err = capfd.readouterr()
        assert err.count("\n") == 1 and str(file) in err and said in err
        assert "5ecret" not in out + err
    assert sys.path == before and not (tmp_path / "executed").exists()


def test_choices_of_hydra_in_the_folder_are_not_read(tmp_path: Path, capfd: Capture) -> None:
    put(tmp_path, "hydra/launcher/mine", "cpus: 1\n")
    assert main(["run", "--config-dir", str(tmp_path), "hydra/launcher=mine", "--cfg", "job"]) == 2
    assert "a choice of Hydra's own" in capfd.readouterr().err


def test_what_an_experiment_may_hold(tmp_path: Path, capfd: Capture) -> None:
    text = "# @package _global_\ndefaults: [{override /target: mine}, {override /hydra/launcher: basic}]\n"
    text += "gamma: 5\nmax_new_tokens: 7\nlimit: ${gamma}\n"
    put(tmp_path, "target/mine", PLAIN)
    put(tmp_path, "experiment/swept", text + "hydra: {mode: MULTIRUN, sweeper: {params: {gamma: '1,3'}}}\n")
    assert main(["sweep", "--config-dir", str(tmp_path), "experiment=swept", "--dry-run"]) == 0
    assert "gamma=1" in (out := capfd.readouterr().out) and "gamma=3" in out
    assert main(["run", "--config-dir", str(tmp_path), "experiment=swept", "--cfg", "job"]) == 0
    assert "max_new_tokens: 7" in capfd.readouterr().out


@pytest.mark.parametrize("name", ["a tag", "aliases", "deeper", "a callback without a package"])
def test_a_bad_choice_is_named_and_the_others_are_listed(name: str, tmp_path: Path, capfd: Capture) -> None:
    group, text, _ = REFUSED[name]
    put(tmp_path, f"{group}/bad", text)
    put(tmp_path, f"{group}/mine", PLAIN)
    os.mkfifo(tmp_path / group / "pipe.yaml")
    with pytest.warns(UserWarning, match="left out") as caught:
        assert main(["list", group, "--config-dir", str(tmp_path)]) == 0
    assert {Path(str(one.message).split(": ")[1]).stem for one in caught} == {"bad", "pipe"}
    assert "mine" in capfd.readouterr().out


def test_a_record_is_composed_without_interpolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "5ecret")
    config = {**FROZEN, "target": {**FROZEN["target"], "note": "${oc.env:SECRET}"}}
    assert config_of_record(config).target.note == "${oc.env:SECRET}"


FROZEN = record(config={"accept": {}})["config"]


@given(st.lists(st.sampled_from(["\\", "$", "{", "}", "oc.env:", "HOME", "a", "${", "${gamma}", "'", " "])))
def test_any_text_of_a_record_comes_back(parts: list[str]) -> None:
    text = "".join(parts)
    frozen = copy.deepcopy(FROZEN)
    frozen["task"]["template"] = frozen["target"]["note"] = text
    found = config_of_record(frozen)
    assert (found.task.template, found.target.note) == (text, text)
