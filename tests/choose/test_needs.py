"""`--dry-run` of run, alpha, recommend and train: models, tokens, memory and time, and nothing loaded or written."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.errors import MachineError

Capture = pytest.CaptureFixture[str]
MINI = ["target=gpt-mini", "draft=gpt-nano", "dtype=float32", "device=cpu", "limit=4", "max_new_tokens=16"]
CALLS = {
    "run": (["run", *MINI], 2 * 4 * 16, "4 prompts with and without the draft, up to 128 new tokens"),
    "alpha": (["alpha", *MINI, "tokens=64"], 2 * 64, "2 samples of 64 tokens, along which 1 draft is scored"),
    "recommend": (["recommend", *MINI, "tokens=64", "gammas=[1,3]"], 64, "64 tokens"),
    "train": (
        ["train", "recipe=distill", "distill.target=gpt-mini", "data.path=[x.jsonl]", "optim.max_steps=10"],
        10 * 128 * 128, "10 steps of 128 rows, up to 163,840 tokens",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.weights.load.load_model", None)
    monkeypatch.setattr("specbench.train.networks.load", None)


@pytest.mark.parametrize("verb", CALLS)
def test_needs_are_told_and_nothing_is_done(
    verb: str, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, tokens, work = CALLS[verb]
    assert main([*words, "--dry-run"]) == 0, capfd.readouterr().err
    out = capfd.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in out] == ["models", "work", "memory", "time"]
    assert "gpt-mini (" in out[0] and "parameters" in out[0] and work in out[1]
    assert "MB" in out[2] and out[3].startswith("time: about ")
    assert ("at most: " in out[3]) == (verb == "train")  # of training, rows are as a rule shorter than they may be
    assert main([*words, "--dry-run", "--format", "json"]) == 0
    needs = json.loads(capfd.readouterr().out)
    assert needs["tokens"] == tokens and needs["seconds"] > 0 and needs["weights_bytes"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("minutes", "spent", "said"),
    [
        (0.001, None, "time: about 0 s (at most: optim.max_minutes=0.001)"),
        (15, 14 * 60, "time: about 1 min 0 s (at most: optim.max_minutes=15, of which 14 min 0 s are over)"),
        (15, 16 * 60, "time: about 0 s (at most: optim.max_minutes=15, of which 16 min 0 s are over)"),
    ],
)
def test_a_training_takes_no_longer_than_its_minutes(
    minutes: float, spent: int | None, said: str, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It told the time of all steps."""
    monkeypatch.chdir(tmp_path)
    words = [*CALLS["train"][0][:-1], "optim.max_steps=1000000", f"optim.max_minutes={minutes}", f"output={tmp_path}"]
    if spent is not None:
        checkpoint = tmp_path / "checkpoints" / "checkpoint-10"
        checkpoint.mkdir(parents=True)
        (checkpoint / "whole.json").write_text("{}")
        (tmp_path / "seconds.txt").write_text(f"{spent}\n")
    assert main([*words, "--dry-run"]) == 0, capfd.readouterr().err
    out = capfd.readouterr().out
    assert said in out and "up to 1,000,000 steps" in out


@pytest.mark.parametrize("verb", CALLS)
def test_mistakes_are_told_as_without_it(verb: str, capfd: Capture) -> None:
    wrong = "optim.max_steps=0" if verb == "train" else "max_new_tokens=0"
    assert main([*CALLS[verb][0], wrong, "--dry-run"]) == 2
    assert wrong.partition("=")[0] in capfd.readouterr().err


def test_what_a_run_refuses_of_its_models_its_dry_run_refuses(capfd: Capture) -> None:
    assert main(["run", *MINI, "draft=t5-nano", "--dry-run"]) == 2
    found = capfd.readouterr()
    assert "draft=t5-nano: is encoder-decoder and target=gpt-mini is decoder-only" in found.err and not found.out


def test_a_failure_of_the_machine_ends_a_dry_run_but_a_model_to_be_fetched_does_not(
    capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise MachineError("target: its tokenizer does not fit in memory")

    monkeypatch.setattr("specbench.hub.hub_is_reachable", lambda: False)
    monkeypatch.setattr("specbench.engine.weights.load.hub_is_reachable", lambda: False)
    words = ["run", f"target=owner/absent@{'a' * 40}", *MINI[1:], "task=lm-mini", "--dry-run"]
    assert main(words) == 0, capfd.readouterr().err
    assert "absent (size not known)" in capfd.readouterr().out
    monkeypatch.setattr("specbench.experiment.run_parts.load_tokenizer", fails)
    assert main(words) == 1
    assert "target: its tokenizer does not fit in memory" in capfd.readouterr().err


def test_dry_run_of_other_modes_is_refused(capfd: Capture) -> None:
    assert main(["recommend", "--load", "--dry-run"]) == 2
    assert "--dry-run: is not known for --load" in capfd.readouterr().err


def test_a_record_tells_the_time_of_the_next_run(tmp_path: Path, capfd: Capture) -> None:
    from specbench.choose import needs

    words = [*CALLS["run"][0], f"results={tmp_path}"]
    assert main([*words, "--dry-run"]) == 0
    assert "an estimate, with no record of this target here" in capfd.readouterr().out
    row = {
        "target": "gpt-mini", "task": "lm-mini", "dtype": "float32", "draft": "gpt-nano", "temperature": 0, "gamma": 3,
        "accept": "exact", "batch": 1, "tokens": 640, "prompts": 10, "target_step_s": 0.5, "speedup_measured": 1.0,
        "created": "2026-01-01", "run_id": "before",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needs, "machine_of", lambda config: "here")
        patch.setattr(needs, "_records", lambda results: [row | {"hardware": "here"}])
        assert main([*words, "--dry-run"]) == 0
        assert "time: about 4 min 16 s (from the record before)" in capfd.readouterr().out
        assert main([*CALLS["alpha"][0], "--dry-run"]) == 0
        assert "with the step time of the record before" in capfd.readouterr().out


def test_the_context_of_prompts_takes_time_and_records_of_another_tell_none(
    tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`context=4k` was told the time of the short prompts."""
    from specbench.choose import needs

    monkeypatch.chdir(tmp_path)  # without records
    monkeypatch.setattr(needs, "bytes_a_second", lambda device: 1e9)

    def told(*more: str) -> dict[str, Any]:
        assert main([*CALLS["run"][0], *more, "--dry-run", "--format", "json"]) == 0
        found: dict[str, Any] = json.loads(capfd.readouterr().out)
        return found

    short, long = told(), told("context=4k")
    assert "4 prompts of up to 4,096 tokens with and without the draft, up to 128 new tokens" in long["work"]
    assert short["tokens"] == long["tokens"] and long["seconds"] > 10 * short["seconds"]
    row = {
        "target": "gpt-mini", "task": "lm-mini", "dtype": "float32", "hardware": "here", "tokens": 640, "prompts": 10,
        "target_step_s": 0.5, "created": "2026-01-01", "run_id": "before",
    }  # fmt: skip
    monkeypatch.setattr(needs, "machine_of", lambda config: "here")
    monkeypatch.setattr(needs, "_records", lambda results: [row])
    assert told()["seconds"] == 256 and told("context=4k")["known_from"] != "from the record before"
    row |= {"context": 4096, "target_start_s": 2.0, "draft_start_s": 1.0}
    assert told("context=4k")["seconds"] == 256 + 4 * 5 and told()["known_from"] != "from the record before"


def test_a_run_of_an_experiment_says_how_many_it_leaves_out(capfd: Capture) -> None:
    assert main(["run", "experiment=table2-mini", "limit=0"]) == 2
    said = capfd.readouterr().err.splitlines()[0]
    assert said.startswith("experiment=table2-mini: this is one of 12 runs, with draft, sampling.temperature, gamma as")
    assert said.endswith("specbench sweep experiment=table2-mini limit=0")
    picked = ["draft=bigram", "sampling.temperature=0", "gamma=3"]
    assert main(["run", "experiment=table2-mini", *picked, "limit=0"]) == 2
    assert "one of" not in capfd.readouterr().err


@pytest.mark.parametrize("verb", ["alpha", "recommend"])
def test_no_more_tokens_are_promised_than_the_prompts_have(verb: str, capfd: Capture) -> None:
    """`recommend limit=2 max_new_tokens=16` said that the target writes 2,000 tokens."""
    assert main([verb, *MINI, "sampling.temperature=0", "--dry-run", "--format", "json"]) == 0
    needs = json.loads(capfd.readouterr().out)
    assert needs["tokens"] == 4 * 16 and "up to 64 tokens" in needs["work"]
