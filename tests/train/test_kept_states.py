"""States of a target that are computed once, for all recipes that learn on the same completions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, Seq2SeqTrainingArguments

from specbench.cli import main
from specbench.errors import UserError
from specbench.train import kept_states
from specbench.train.kept_states import KeptStates
from specbench.train.recipe import make_learner
from specbench.train.recipe_schema import BlockPlan, DistillPlan, EaglePlan, ModelShape, Recipe
from specbench.train.sets import padded_batch
from specbench.train.target_texts import padded
from specbench.train.trainers import DistillTrainer
from tests.support import networks
from tests.support.small_recipes import SMALL

TEXTS = [[5, 6, 7, 8, 9], [8, 9, 10, 11, 12, 13, 14], [13, 14, 15], [15, 16, 17, 18, 5, 6]]
KINDS = ["eagle", "eagle3", "mtp", "peagle", "medusa", "hydra", "blockwise", "dflash", "dspark", "pard"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return networks.save(tmp_path_factory.mktemp("target") / "llama", "llama", seed=2)


def rows_of(texts: list[list[int]]) -> list[dict[str, Any]]:
    return [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [-100, *ids[1:]], "row": row}
        for row, ids in enumerate(texts)
    ]


def recipe_for(kind: str, target: Path) -> Recipe:
    return Recipe(
        task="lm", kind=kind, distill=DistillPlan(target=str(target)),
        model=ModelShape(family="gpt2", start_from=str(target)),
        eagle=EaglePlan(taps=[0, 1, 2] if kind in ("eagle3", "peagle") else []),
        block=BlockPlan(taps=[0, 1], mask=3, rank=4 if kind == "dspark" else 0),
    )  # fmt: skip


def no_run(*_: Any, **__: Any) -> None:
    raise AssertionError("the target ran")


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_on_kept_states_is_that_of_a_run_of_the_target(
    kind: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, rows = AutoModelForCausalLM.from_pretrained(target).eval(), rows_of(TEXTS)
    torch.manual_seed(1)
    learner = make_learner(recipe_for(kind, target), network, Dataset.from_list(rows))
    batch = padded_batch(rows[1:], 0)
    losses = []
    for kept in (None, KeptStates(tmp_path / "states", network, TEXTS, learner.depths, "one")):
        learner.kept = kept
        if kept is not None:
            monkeypatch.setattr(network, "forward", no_run)
        torch.manual_seed(2)
        loss = learner(**batch)["loss"]
        learner.zero_grad()
        loss.backward()
        losses.append((loss.item(), [one.grad.clone() for one in learner.parameters() if one.grad is not None]))
    (wanted, of_run), (found, of_kept) = losses
    assert found == pytest.approx(wanted, rel=1e-5) and len(of_kept) == len(of_run) > 0
    for one, other in zip(of_run, of_kept, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_a_distilled_model_learns_the_same_from_kept_states(target: Path, tmp_path: Path) -> None:
    network, rows = AutoModelForCausalLM.from_pretrained(target).eval(), rows_of(TEXTS)
    draft = AutoModelForCausalLM.from_pretrained(networks.save(tmp_path / "draft", "llama", seed=3))
    kept = KeptStates(tmp_path / "states", network, TEXTS, [], "one")
    losses = []
    for of_kept in (None, kept.logits_of):
        told = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none"}
        trainer = DistillTrainer(
            model=draft, args=Seq2SeqTrainingArguments(**told), target=network, kl_weight=0.7, kept=of_kept
        )
        losses.append(trainer.compute_loss(draft, padded_batch(rows, 0)).item())
        network.forward = no_run  # type: ignore[method-assign]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_states_of_other_texts_are_not_taken(target: Path, tmp_path: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(target).eval()
    kept = KeptStates(tmp_path, network, TEXTS, [], "one")
    with pytest.raises(ValueError, match="text 0 is another"):
        kept.of(torch.tensor([0]), torch.tensor([TEXTS[1]]))


def test_a_full_disk_is_said_before_the_target_runs(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = AutoModelForCausalLM.from_pretrained(target).eval()
    monkeypatch.setattr(kept_states.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(UserError, match="the states take .* GB, and 0.0 GB are free; give a folder with more room"):
        KeptStates(tmp_path, network, TEXTS, [1], "one")


def test_what_is_kept_is_not_computed_again_and_what_is_damaged_or_of_others_is(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, folder = AutoModelForCausalLM.from_pretrained(target).eval(), tmp_path / "states"
    monkeypatch.setattr(kept_states, "ROWS", 2)
    first = KeptStates(folder, network, TEXTS, [1], "one")
    wanted = first.of(torch.tensor([2, 1]), padded([TEXTS[2], TEXTS[1]], 0))
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == 4  # two of each depth
    times = [file.stat().st_mtime_ns for file in files]
    body = type(network.model).forward
    monkeypatch.setattr(type(network.model), "forward", no_run)
    again = KeptStates(folder, network, TEXTS, [1], "one").of(torch.tensor([2, 1]), padded([TEXTS[2], TEXTS[1]], 0))
    assert all(torch.equal(one, other) for one, other in zip(wanted, again, strict=True))
    with pytest.raises(AssertionError, match="the target ran"):
        KeptStates(folder, network, TEXTS, [1, 2], "one")  # a further depth
    with pytest.raises(AssertionError, match="the target ran"):
        KeptStates(folder, network, TEXTS, [1], "another target")
    monkeypatch.setattr(type(network.model), "forward", body)
    files[0].write_bytes(files[0].read_bytes()[:100])
    mended = KeptStates(folder, network, TEXTS, [1], "one").of(torch.tensor([2, 1]), padded([TEXTS[2], TEXTS[1]], 0))
    assert all(torch.equal(one, other) for one, other in zip(wanted, mended, strict=True))
    assert [file.stat().st_mtime_ns for file in files][1:] == times[1:]


def test_logits_that_are_changed_after_the_head_are_not_taken_from_states(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = AutoModelForCausalLM.from_pretrained(target).eval()
    run = network.forward

    def capped(**given: Any) -> Any:
        output = run(**given)
        output.logits = torch.tanh(output.logits / 0.1) * 0.1
        return output

    monkeypatch.setattr(network, "forward", capped)
    with pytest.raises(UserError, match="distill.states: distill.target changes its logits after its head"):
        KeptStates(tmp_path, network, TEXTS, [], "one")


@pytest.mark.full
def test_two_recipes_share_the_states(
    target: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "the {word} dog"}}\n' for word in ("old", "new", "red", "big", "sad")))
    words = [
        f"distill.target={target}", f"data.path=[{prompts}]", "distill.max_new_tokens=6",
        f"distill.outputs={tmp_path / 'outputs'}", f"distill.states={tmp_path / 'states'}", *SMALL, "distill.greedy=1",
        "distill.sampled=1",
    ]  # fmt: skip
    assert main(["train", "recipe=eagle", *words, f"output={tmp_path / 'one'}"]) == 0, capfd.readouterr().err
    kept = sorted((tmp_path / "states").iterdir())
    assert kept
    monkeypatch.setattr(KeptStates, "_compute", no_run)
    assert main(["train", "recipe=medusa", *words, f"output={tmp_path / 'two'}"]) == 0, capfd.readouterr().err
    own = ["recipe=distill", "model.family=own", "model.decoder_layers=1"]
    assert main(["train", *own, *words, f"output={tmp_path / 'three'}"]) == 0, capfd.readouterr().err
    assert sorted((tmp_path / "states").iterdir()) == kept


def test_states_need_completions(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["distill.target=t5-mini", "data.path=[x.jsonl]", f"output={tmp_path}", "distill.states=states"]
    assert main(["train", "recipe=eagle", *words]) == 2
    assert "distill.states: requires data.completions=true" in capfd.readouterr().err
