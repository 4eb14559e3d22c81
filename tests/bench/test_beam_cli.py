"""`specbench bench beam`: the table, its files, and one-line errors."""

import json
from pathlib import Path

import pytest

from specbench.cli import main
from tests.support.calls import refusal
from tests.support.networks import save

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]


def argv(folders: Folders, results: Path, kind: str, *more: str) -> list[str]:
    return [
        "bench", "beam", f"target.path={folders[kind]}", f"draft.path={folders[f'{kind}-draft']}", "task=ende",
        f"task.path={folders['rows']}", "device=cpu", "max_new_tokens=6", "limit=2", f"results={results}", *more,
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_row_for_each_u_and_gamma_beside_the_plain_search(
    folders: Folders, tmp_path: Path, capfd: Capture, kind: str
) -> None:
    assert main(argv(folders, tmp_path, kind, "width=2", "gamma=[1,3]", "early_stopping=never")) == 0
    out = capfd.readouterr().out
    assert out.count("| 2 of 2 ") == 5
    (file,) = tmp_path.glob("beam/beam-*.json")
    assert file.stem == f"beam-{kind}-{kind}-draft-ende-w2"
    record = json.loads(file.read_text())
    rows = record["rows"]
    assert [(row["u"], row["gamma"]) for row in rows] == [(2, 0), (2, 1), (2, 3), (4, 1), (4, 3)]
    assert rows[0]["passes_saved"] == 0 and rows[0]["steps_per_pass"] == 1
    for row in rows:
        assert row["identical"] == row["texts"] == 2 and row["score_gap"] < 1e-4
        # Both take the same steps, so what a pass is good for and what is saved are one thing.
        assert row["passes_saved"] == pytest.approx(1 - 1 / row["steps_per_pass"])
        assert row["scored_per_pass"] <= 2 + row["u"] * row["gamma"]
    assert record["early_stopping"] == "never" and record["dtype"] == "float32"
    assert record["task"] == f"ende ({folders['rows'].name})"  # rows of one's own are not the task's
    assert "| no draft |" in file.with_suffix(".md").read_text()


def test_the_target_as_its_own_draft_saves_most(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    keys = argv(folders, tmp_path, "gpt2", "u=[2]", "width=2", "gamma=[5]", "early_stopping=never")
    assert main([*keys, f"draft.path={folders['gpt2']}"]) == 0
    (file,) = tmp_path.glob("beam/beam-*.json")
    plain, own = json.loads(file.read_text())["rows"]
    assert plain["passes_per_text"] <= 6 and own["passes_per_text"] == 1
    capfd.readouterr()


WRONG = {
    "width=1": "width=1: must be from 2 to 64",
    "u=[3]": "u=[3]: must be a list of numbers from width=4 to 256",
    "u=[]": "u=[]: must be a list",
    "gamma=[0]": "gamma=[0]: must be a list of numbers from 1 to 64",
    "gamma=[]": "gamma=[]: must be",
    "length_penalty=inf": "length_penalty=inf: must be from -10 to 10",
    "early_stopping=null": "early_stopping=null: field 'early_stopping' is not Optional",
    "early_stopping=sometimes": "early_stopping=sometimes: must be true | false | never",
    "max_new_tokens=0": "max_new_tokens=0: must be at least 1",
    "limit=0": "limit=0: must be at least 1",
    "dtype=float8": "dtype=float8: must be",
    "device=tpu": "device=tpu: must be",
    "draft=bigram": "draft.kind=bigram: must be model",
    "draft.confidence=0.5": "draft.confidence=0.5: must be null",
    "draft=random-t5-small": "draft.weights=random: must be trained",
    "sampling.temperature=1": "sampling.temperature: no such option",
    "widht=4": "widht: no such option; did you mean width?",
}


@pytest.mark.parametrize("override", WRONG)
def test_one_line_that_names_the_key(override: str, capfd: Capture) -> None:
    assert refusal(["bench", "beam", override], capfd).startswith(f"specbench: {WRONG[override]}")


def test_weights_that_are_not_finite_are_told(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    broken = save(tmp_path / "broken", "gpt2", seed=1)
    weights = load_file(broken / "model.safetensors")
    save_file({key: torch.full_like(w, torch.nan) for key, w in weights.items()}, broken / "model.safetensors")
    assert main([*argv(folders, tmp_path, "gpt2"), f"target.path={broken}"]) == 1
    err = capfd.readouterr().err.splitlines()[-1]
    assert err.startswith("specbench: dtype=float32: the model's logits are not finite; use dtype=float32"), err
