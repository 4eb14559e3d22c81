"""A target names its default task, an explicit task wins, and a run begins by saying what it decodes."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import hydra
import pytest
from hydra.core.config_store import ConfigStore

from specbench.cli import main
from specbench.compose.grid import launch_each
from specbench.compose.unnamed import conf_of_hydra
from specbench.config.catalogue import choice_names
from specbench.config.schema import RunConfig
from specbench.config.verbs import BeamConfig, BenchConfig, ChooseConfig

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]
SCHEMAS = {"run": RunConfig, "choose": ChooseConfig, "bench": BenchConfig, "beam": BeamConfig}
GPT_LIKE = ("gpt2", "distilgpt2", "gpt-97m", "gpt-6m")

TODAY = dict.fromkeys(
    ("llama3.1-8b", "llama3.3-70b", "qwen2.5-7b", "qwen3-8b", "gemma2-9b", "gemma3-1b", "mistral-7b", "vicuna-7b"),
    "mt-bench",
) | {"pythia-2.8b": "lm1b", "opt-6.7b": "lm1b", "bart-large-cnn": "cnndm-plain", "opus-mt-en-de": "wmt"}


def task_of(*overrides: str, primary: str = "run") -> str:
    ConfigStore.instance().store(name=f"{primary}_schema", node=SCHEMAS[primary])
    with conf_of_hydra():
        name: str = hydra.compose(primary, overrides=list(overrides)).task.name
    return name


def expected(target: str) -> str:
    if target.startswith(GPT_LIKE):
        return "lm1b"
    if target == "gpt-mini" or target.startswith(("random-llama", "random-moe", "random-qwen")):
        return "lm-mini"
    if target in TODAY:
        return TODAY[target]
    # What ships, what is timed without weights, and a hub model of which nothing is known.
    return "ende-mini" if target in ("t5-mini", "hub") or target.startswith("random-") else "ende"


@pytest.mark.covering(most=8)
@pytest.mark.parametrize("target", choice_names("target"))
def test_every_target_has_its_default_task(target: str) -> None:
    assert task_of(f"target={target}") == expected(target)


@pytest.mark.parametrize("primary", SCHEMAS)
def test_the_default_task_holds_for_every_verb(primary: str) -> None:
    assert task_of("target=t5-xxl", "draft=t5-small", primary=primary) == "ende"
    assert task_of("target=gpt-mini", "draft=gpt-nano", primary=primary) == "lm-mini"
    assert task_of(primary=primary) == "ende-mini"


@pytest.mark.parametrize("draft", ["t5-small", "gpt2", "cascade"])
def test_a_draft_does_not_choose_the_task(draft: str) -> None:
    assert task_of(f"draft={draft}") == "ende-mini"
    assert task_of("target=hub", f"draft={draft}") == "ende-mini"


@pytest.mark.full
def test_an_explicit_task_and_an_experiment_win() -> None:
    assert task_of("target=t5-xxl", "task=ende-mini") == "ende-mini"
    assert task_of("task=cnndm", "target=t5-xxl") == "cnndm"
    assert task_of("experiment=figure1", "target=t5-mini") == "lm1b"
    assert task_of("experiment=mini", "target=gpt-mini") == "ende-mini"
    assert task_of("experiment=mini", "target=gpt-mini", "task=lm1b") == "lm1b"


@pytest.mark.full
def test_each_job_of_a_sweep_has_its_targets_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[tuple[str | None, str]] = []
    monkeypatch.setattr(
        "specbench.experiment.runner.execute", lambda config, *_: taken.append((config.target.name, config.task.name))
    )
    assert main(["sweep", "target=t5-mini,gpt-mini,random-t5-small", "draft=random", "simulate.alpha=0.5",
                 f"results={tmp_path}"]) == 0  # fmt: skip
    assert taken == [("t5-mini", "ende-mini"), ("gpt-mini", "lm-mini"), ("random-t5-small", "ende-mini")]


@pytest.mark.full
def test_several_drafts_share_the_targets_task(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[ChooseConfig] = []

    def job(configs: list[ChooseConfig]) -> None:
        taken.extend(configs)

    launch_each(job, ChooseConfig, ["target=gpt-mini", "draft=[gpt-nano,bigram]"], "alpha")
    assert [asdict(config.task)["name"] for config in taken] == ["lm-mini", "lm-mini"]


def test_a_target_of_ones_own_names_its_task(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine.yaml").write_text(
        "defaults:\n  - override /task@_global_.task: sum-mini\nname: mine\npath: .\n"
    )
    assert main(["run", "--config-dir", str(tmp_path), "target=mine", "--cfg", "job"]) == 0
    assert re.search(r"^  name: sum-mini$", capfd.readouterr().out, re.M)


@pytest.fixture
def run(folders: Folders, tmp_path: Path, capfd: Capture) -> Callable[..., tuple[int, Sequence[str]]]:
    def call(*more: str, verb: str = "run", kind: str = "t5") -> tuple[int, Sequence[str]]:
        keys = ["dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=4"]
        keys += ["warmup=0"] if verb == "run" else []
        argv = [verb, f"target.path={folders[kind]}", "draft=random", f"results={tmp_path}", *keys, *more]
        code = main(argv)
        return code, capfd.readouterr().err.splitlines()

    return call


@pytest.mark.full
def test_the_first_line_says_task_and_prompts(run: Callable[..., tuple[int, Sequence[str]]], folders: Folders) -> None:
    code, lines = run("task=ende", f"task.path={folders['rows']}")
    assert code == 0 and re.fullmatch(r"run \S+-ende-\S+: task ende, 3 prompts", lines[0])
    code, lines = run("limit=1")
    assert code == 0 and lines[0].endswith(": task ende-mini, 1 prompt")
    code, lines = run("task=ende", f"task.path={folders['rows']}", "tokens=4", "sampling.temperature=0", verb="alpha")
    assert code == 0 and lines[0] == "task ende, 3 prompts"


def test_a_default_task_that_cannot_be_had_offline_names_one_that_can(
    run: Callable[..., tuple[int, Sequence[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.tasks.hub_is_reachable", lambda: False)
    code, lines = run("target=t5-xxl")
    assert code == 1 and len(lines) == 1
    assert "task=ende: wmt/wmt14 (test)" in lines[0] and "task=ende-mini" in lines[0]


@pytest.mark.full
def test_a_decoder_only_model_that_is_asked_to_translate(
    run: Callable[..., tuple[int, Sequence[str]]], folders: Folders
) -> None:
    said = "gpt2 is decoder-only and has no chat template: unless it was trained for task=ende"
    rows = f"task.path={folders['rows']}"
    assert [said in line for line in run("task=ende", rows, kind="gpt2")[1]].count(True) == 1
    for keys, kind in ((("task=ende", rows), "t5"), (("task=ende", rows, "simulate.alpha=0.5"), "gpt2"),
                       (("task=lm1b", rows, "task.reference_field=en"), "gpt2")):  # fmt: skip
        code, lines = run(*keys, kind=kind)
        assert code == 0 and not any(said in line for line in lines)
