"""A training resumes what is its own and whole: another recipe is refused, a damaged checkpoint skipped."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specbench.choose.needs import of_training
from specbench.cli import main
from specbench.errors import UserError
from specbench.train.checkpoints import last_whole
from specbench.train.recipe import train
from specbench.train.recipe_schema import BlockwisePlan, DataPlan, DistillPlan, Recipe
from specbench.train.resuming import fingerprint
from specbench.train.target_texts import kept_outputs
from specbench.train.trainers import SizedTrainer

CHANGES: dict[str, Callable[[Recipe], Recipe]] = {
    "optim.lr=0.001 there, 0.01 now": lambda one: replace(one, optim=replace(one.optim, lr=0.01)),
    "seed=1 there, 2 now": lambda one: replace(one, seed=2),
    "model.d_model=32 there, 16 now": lambda one: replace(one, model=replace(one.model, d_model=16)),
    "tokenizer.size=100 there, 90 now": lambda one: replace(one, tokenizer=replace(one.tokenizer, size=90)),
    "data.max_target=32 there, 16 now": lambda one: replace(one, data=replace(one.data, max_target=16)),
}


@contextmanager
def stopped_after(steps: int, by: type[BaseException] = RuntimeError) -> Iterator[None]:
    """Trainings end with `by` when they have done so many steps, with the disk as a kill leaves it."""
    original, done = SizedTrainer.training_step, []

    def dying(self: SizedTrainer, *args: object, **kwargs: object) -> object:
        if len(done) == steps:
            raise by
        done.append(0)
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SizedTrainer, "training_step", dying)
        with pytest.raises(by):
            yield


@pytest.fixture
def begun(gpt_recipe: Recipe) -> Recipe:
    """A recipe of 4 steps that was killed after its third, with a checkpoint after each."""
    recipe = replace(gpt_recipe, save_steps=1)
    with stopped_after(3):
        train(recipe)
    return recipe


def test_another_recipe_is_refused_with_both_ways_out(begun: Recipe) -> None:
    for said, change in CHANGES.items():
        with pytest.raises(UserError) as caught:
            train(change(begun))
        assert said in str(caught.value) and "\n" not in str(caught.value)
        assert "output=FOLDER" in str(caught.value) and "force=true" in str(caught.value)
    assert (train(begun) / "model.safetensors").is_file()


def test_other_rows_under_the_same_name_are_another_training(begun: Recipe, rows: list[dict], tmp_path: Path) -> None:
    (file,) = begun.data.path
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy(file, tmp_path / "elsewhere")
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows[:50]))
    with pytest.raises(UserError, match=r"\(other files as data.path\)"):
        train(begun)
    assert train(replace(begun, data=replace(begun.data, path=[moved])))  # the same rows from elsewhere


def test_force_starts_again_and_discards_all_that_the_other_left(begun: Recipe) -> None:
    other = replace(begun, model=replace(begun.model, d_model=16), tokenizer=replace(begun.tokenizer, size=90))
    folder = train(replace(other, force=True))
    assert {len(weight) for name, weight in load_file(folder / "model.safetensors").items() if "ln_f" in name} == {16}
    steps = [entry["step"] for entry in json.loads((folder / "training-log.json").read_text()) if "loss" in entry]
    assert steps == [1, 2, 3, 4]
    assert len(json.loads((folder / "tokenizer" / "tokenizer.json").read_text())["model"]["vocab"]) == 90
    assert json.loads((folder / "training.json").read_text()) == fingerprint(other)


def heads_on(t5_recipe: Recipe, start_from: str) -> Recipe:
    """Heads that continue from `start_from`, on completions that the target writes before they are loaded."""
    plan = DistillPlan(target=t5_recipe.output, greedy=0.1, sampled=0.0, max_new_tokens=4, start_from=start_from)
    optim = replace(t5_recipe.optim, max_steps=1)
    heads = BlockwisePlan(heads=2, hidden=8)
    return replace(
        t5_recipe, output=f"{t5_recipe.output}-heads", distill=plan, optim=optim, kind="blockwise", blockwise=heads
    )


def test_a_start_that_failed_leaves_no_other_training(t5_recipe: Recipe, tmp_path: Path) -> None:
    train(t5_recipe)
    first = train(replace(heads_on(t5_recipe, ""), output=str(tmp_path / "first")))
    other = train(replace(heads_on(t5_recipe, ""), output=str(tmp_path / "other"), blockwise=BlockwisePlan(heads=3)))
    for wrong, said in ((str(tmp_path / "nowhere"), "give a folder with one"), (str(other), "not weights of the kind")):
        with pytest.raises(UserError, match=said):
            train(heads_on(t5_recipe, wrong))
    assert (train(heads_on(t5_recipe, str(first))) / "heads.safetensors").is_file()


def test_a_start_that_failed_on_its_rows_leaves_no_other_training(
    gpt_recipe: Recipe, rows: list[dict], jsonl: Callable[[str, list[dict]], str]
) -> None:
    held = replace(gpt_recipe, data=replace(gpt_recipe.data, hold_out=20))
    short = jsonl("short.jsonl.gz", [{"text": row["text"][:6]} for row in rows])
    pieces = replace(held.tokenizer, size=29)  # as many as this text has
    with pytest.raises(UserError, match=r"data.hold_out: no text"):
        train(replace(held, data=replace(held.data, path=[short]), tokenizer=pieces))
    assert (train(held) / "model.safetensors").is_file()


def test_a_start_that_failed_discards_nothing_of_the_same_training(begun: Recipe, tmp_path: Path) -> None:
    unread = replace(begun.data, eval_path=[str(tmp_path / "nowhere.jsonl")])
    with pytest.raises(UserError, match="nowhere.jsonl"):
        train(replace(begun, data=unread))
    assert last_whole(Path(begun.output)) is not None
    assert (train(begun) / "model.safetensors").is_file()


def test_force_discards_nothing_for_a_start_from_nothing(t5_recipe: Recipe, tmp_path: Path) -> None:
    train(t5_recipe)
    recipe = heads_on(t5_recipe, "")
    folder = train(recipe)
    wrong = replace(recipe, force=True, distill=replace(recipe.distill, start_from=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match="give a folder with one"):
        train(wrong)
    assert last_whole(folder) is not None and json.loads((folder / "training.json").read_text()) == fingerprint(recipe)


def test_weights_of_an_unknown_training_are_not_overwritten(gpt_recipe: Recipe) -> None:
    folder = Path(gpt_recipe.output)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights of somebody")
    with pytest.raises(UserError, match="its recipe is not known.*force=true"):
        train(gpt_recipe)
    assert (folder / "model.safetensors").read_bytes() == b"weights of somebody"


def test_what_is_only_shown_or_measured_is_no_other_training(begun: Recipe, pairs: str) -> None:
    data = replace(begun.data, test={"toy": pairs}, test_rows=2)
    assert train(replace(begun, name="renamed", log_steps=2, save_steps=2, data=data)).is_dir()


def damage(checkpoint: Path, how: str) -> None:
    """As a kill, a full disk or a bad disk leaves a checkpoint."""
    if how == "empty":
        shutil.rmtree(checkpoint)
        checkpoint.mkdir()
    elif how == "unfinished":
        (checkpoint / "whole.json").unlink()
        (checkpoint / "trainer_state.json").unlink()
    elif how == "cut":
        file = checkpoint / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
    else:
        (checkpoint / "optimizer.pt").write_bytes(b"\0" * (checkpoint / "optimizer.pt").stat().st_size)


@pytest.mark.parametrize("how", ["empty", "unfinished", "cut", "zeros"])
def test_a_damaged_checkpoint_is_skipped_and_said(begun: Recipe, how: str, capfd: pytest.CaptureFixture[str]) -> None:
    last = last_whole(Path(begun.output))
    assert last is not None and last.name == "checkpoint-3"
    damage(last, how)
    capfd.readouterr()
    assert (train(begun) / "model.safetensors").is_file()
    said = capfd.readouterr().err
    assert f"checkpoint-3: this checkpoint is {'damaged' if how in ('cut', 'zeros') else 'unfinished'}" in said
    assert "it is skipped" in said and "resumes from step 2 of 4" in said


def test_without_a_whole_checkpoint_training_starts_from_step_0(begun: Recipe) -> None:
    for checkpoint in (Path(begun.output) / "checkpoints").iterdir():
        damage(checkpoint, "empty")
    assert (train(begun) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("save_steps", "said"),
    [
        (1, "interrupted; the same command resumes from step 2"),
        (
            300,
            "interrupted before the first checkpoint (save_steps=300): the same command starts again from step 0, with "
            "the fitted tokenizer",
        ),
    ],
)
def test_ctrl_c_says_what_it_leaves(
    gpt_recipe: Recipe, save_steps: int, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(gpt_recipe, save_steps=save_steps)
    monkeypatch.setattr("specbench.cli.train.main", lambda words: 0 if train(recipe) else 1)
    with stopped_after(2, KeyboardInterrupt):
        code = main(["train"])
        err = capfd.readouterr().err
        assert code == 130 and err.splitlines()[-1] == f"specbench: {said}"
        raise KeyboardInterrupt


def test_a_fingerprint_names_no_folder_of_this_machine(gpt_recipe: Recipe, tmp_path: Path) -> None:
    assert str(tmp_path) not in json.dumps(fingerprint(gpt_recipe))
    assert fingerprint(Recipe(data=DataPlan())) == {}


@pytest.mark.parametrize("content", [b"{", b'{"source": [1], "output": "x"}\n', b"\xff\n", b'{"source": [1]}\n'])
def test_damaged_outputs_are_written_again_and_said(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "target-greedy.jsonl"
    file.write_bytes(content)
    assert kept_outputs(file, [[1]], lambda: [[2, 3]]) == [[2, 3]]
    assert f"{file}: is damaged (" in capfd.readouterr().err
    assert kept_outputs(file, [[1]], lambda: [[4]]) == [[2, 3]]


def steps_of(folder: Path) -> list[int]:
    return [entry["step"] for entry in json.loads((folder / "training-log.json").read_text()) if "loss" in entry]


@pytest.mark.parametrize("minutes", [None, 1e-9])
def test_a_training_that_was_stopped_while_it_was_measured_takes_no_further_step(
    minutes: float | None, gpt_recipe: Recipe, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that is measured again; `max_minutes` ends it after its first step."""
    steps = [1, 2, 3, 4] if minutes is None else [1]
    recipe = replace(gpt_recipe, optim=replace(gpt_recipe.optim, max_minutes=minutes))
    folder = Path(recipe.output)

    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("specbench.train.recipe._finish", stopped)
        with pytest.raises(KeyboardInterrupt, match="after the last step: the same command measures what was trained"):
            train(recipe)
    last = last_whole(folder)
    assert last is not None
    trained = load_file(last / "model.safetensors")
    for _ in range(2):
        (folder / "README.md").unlink(missing_ok=True)
        capfd.readouterr()
        train(recipe)
        assert "is trained; it is measured now" in capfd.readouterr().err
        assert last_whole(folder) == last and steps_of(folder) == steps
        for name, weight in load_file(folder / "model.safetensors").items():
            torch.testing.assert_close(weight, trained[name].to(weight.dtype), rtol=0, atol=0, msg=name)
        assert float((folder / "seconds.txt").read_text()) > 0
        assert re.search(rf"\| steps +\| {steps[-1]} of", (folder / "README.md").read_text())


@pytest.mark.parametrize("content", ["", "soon", "NaN", "[1]", "1" * 2000])
def test_a_damaged_clock_is_said_and_training_goes_on(
    content: str, begun: Recipe, capfd: pytest.CaptureFixture[str]
) -> None:
    (Path(begun.output) / "seconds.txt").write_text(content)
    needs = of_training(begun)
    assert "seconds.txt: is damaged (" in capfd.readouterr().err
    assert "at the rate of those before" not in needs.known_from
    assert (train(begun) / "model.safetensors").is_file()


@pytest.mark.parametrize("minutes", [None, 1e-6])
def test_a_training_that_is_done_is_neither_trained_nor_measured_again(
    minutes: float | None, gpt_recipe: Recipe, pairs: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`make real` measured the alpha of each draft again, whose card had it."""
    recipe = replace(gpt_recipe, optim=replace(gpt_recipe.optim, max_minutes=minutes))
    folder = train(recipe)
    weights, card = (folder / "model.safetensors"), (folder / "README.md")
    before = card.read_text(), weights.stat().st_mtime_ns
    assert train(replace(recipe, log_steps=2)) == folder
    assert (card.read_text(), weights.stat().st_mtime_ns) == before
    assert "is trained and measured; without its README.md it is measured again" in capfd.readouterr().err
    with stopped_after(0):  # anything that trains ends with an error
        longer = replace(recipe, optim=replace(recipe.optim, max_minutes=60))
        train(replace(recipe, force=True) if minutes is None else longer)


def test_what_a_card_lacks_is_measured(gpt_recipe: Recipe, pairs: str, tmp_path: Path) -> None:
    folder = train(gpt_recipe)
    weights, card = (folder / "model.safetensors"), (folder / "README.md")
    for change in (
        lambda: card.unlink(),
        lambda: (folder / "recipe.yaml").write_text("- 1\n"),
        lambda: os.utime(card, (0, 0)),  # older than the last checkpoint
    ):
        before = weights.stat().st_mtime_ns
        change()
        assert train(gpt_recipe) == folder and weights.stat().st_mtime_ns > before and card.is_file()
    with stopped_after(0):
        train(replace(gpt_recipe, force=True))
