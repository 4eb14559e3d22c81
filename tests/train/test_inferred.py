"""Recipes for a decoder-only target, as they are typed: what the target decides, small data, and the card."""

import json
import re
import shlex
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.cli import main
from specbench.config.paths import conf_dir, shipped
from specbench.methods.eagle.network import Eagle
from specbench.train.draft_alpha import alpha, target_outputs
from specbench.train.fitting import fitted_to_target, usual_taps
from specbench.train.recipe_checks import check
from specbench.train.recipe_schema import DataPlan, DistillPlan, Recipe
from specbench.train.resuming import fingerprint
from specbench.train.target_completions import engine_of
from tests.support import networks
from tests.support.small_recipes import SMALL


@pytest.mark.full
@pytest.mark.parametrize("words", ["recipe=eagle task=lm", "recipe=medusa name=mine", "recipe=gpt-mini-pass"])
def test_a_decoder_only_target_decides_what_a_recipe_leaves_open(
    words: str, target: Path, prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    argv = [*words.split(), f"distill.target={target}", f"data.path=[{prompts}]", f"output={output}", *SMALL]
    assert main(["train", *argv]) == 0, capfd.readouterr().err
    said = capfd.readouterr().err
    assert "data.hold_out=200: 12 of 60 rows are held out" in said
    assert "greedy outputs to measure α" in said  # a bar while alpha is measured
    card = (output / "README.md").read_text()
    assert "α of " in card
    named = re.findall(r"recipe=([\w.-]+)", card)
    assert all((conf_dir() / "recipe" / f"{name}.yaml").is_file() for name in named)
    assert named == [words.partition("=")[2].partition(" ")[0]]  # whatever `name=` is


MISTAKES = {
    "": "recipe= is missing",
    "recipe=eagle task=ml": "task=ml: must be seq2seq | lm",
    "recipe=eagle": "distill.target is not set",
    "recipe=distill data.path=[x]": "distill.target is not set",
    "recipe=eagle3 eagle.taps=[2,16,29] distill.target=TARGET data.path=[x]": "the target has 2 decoder layers",
    "recipe=medusa distill.target=shipped:models/t5-mini data.path=[shipped:data/sum-mini.jsonl.gz]": (
        "name its fields: data.source=FIELD data.target=FIELD"
    ),
    "recipe=specdec distill.target=TARGET data.path=[x]": "is decoder-only, and specdec reads the encoder",
    "recipe=eagle task=seq2seq distill.target=TARGET data.path=[x]": "is decoder-only, which requires task=lm",
}


def _words(words: str, target: Path) -> list[str]:
    return words.replace("TARGET", str(target)).replace("[shipped:", "['shipped:").replace(".gz]", ".gz']").split()


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words: str, target: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *_words(words, target)]) == 2
    said = capfd.readouterr().err
    assert MISTAKES[words] in said and said.count("specbench:") == 1


@pytest.mark.full
def test_a_decoder_without_a_draft_is_shown_drafts_that_need_nothing(
    target: Path, prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", f"target={target}", f"task={prompts}", f"results={tmp_path}", "limit=1", "max_new_tokens=4"]
    argv += ["device=cpu", "dtype=float32", "engine=eager", "warmup=0", "threads=1"]
    assert main(argv) == 2
    said = capfd.readouterr().err
    assert "use draft=lookup or draft=early-exit" in said and "unigram" not in said
    assert main([*argv, "draft=bigram"]) == 2
    assert "draft=lookup and draft=early-exit require none" in capfd.readouterr().err
    for draft in ("lookup", "early-exit"):  # the suggestions work as printed
        assert main([*argv, f"draft={draft}"]) == 0, capfd.readouterr().err


def test_the_cards_that_ship_name_their_licence_and_recipes_that_exist() -> None:
    cards = [folder / "README.md" for folder in shipped("models").iterdir()]
    texts = [card.read_text(encoding="utf-8") for card in cards]
    assert all("licence" in text.lower() for text in texts)
    named = {name for text in texts for name in re.findall(r"recipe=([\w.-]+)", text)}
    assert named and all((conf_dir() / "recipe" / f"{name}.yaml").is_file() for name in named)


@pytest.mark.parametrize("recipe", ["distill", "eagle3", "hydra"])
def test_what_follows_from_a_decoder_only_target(
    recipe: str, prompts: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found: list[Recipe] = []
    monkeypatch.setattr("specbench.train.recipe.train", lambda one, composed_from: found.append(check(one)))
    words = ["train", f"recipe={recipe}", "distill.target=shipped:models/gpt-mini", f"data.path=[{prompts}]"]
    assert main(words) == 0, capfd.readouterr().err
    (one,) = found
    assert (one.task, one.model.family, one.data.completions, one.data.hold_out) == ("lm", "gpt2", True, 200)
    shipped_prompts = {f"shipped:data/{name}.jsonl.gz" for name in ("chat", "code", "summaries", "translation")}
    assert {"shipped:data/sum-mini.jsonl.gz", *shipped_prompts} <= {*one.data.exclude} and not one.data.test
    assert list(one.eagle.taps) == ([2, 4, 5] if recipe == "eagle3" else [])


def test_the_field_of_running_text_is_not_completed(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found: list[Recipe] = []
    monkeypatch.setattr("specbench.train.recipe.train", lambda one, composed_from: found.append(check(one)))
    words = ["train", "recipe=hydra", "distill.target=shipped:models/gpt-mini", f"data.path=[{prompts}]"]
    for more in (["data.completions=false"], ["data.text=prompt"]):
        assert main([*words, *more]) == 0, capfd.readouterr().err
        assert found[-1].data.text == "prompt" and not found[-1].data.completions
        assert found[-1].data.exclude == ["shipped:data/sum-mini.jsonl.gz"]


def test_rows_of_text_and_a_recipe_without_a_target_are_as_before_prompts_could_be_completed(
    prompts: Path, tmp_path: Path
) -> None:
    """A training that an earlier version began is taken up again, and a model is trained on the field `prompt`."""
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "the dog runs"}\n', encoding="utf-8")
    of_text = Recipe(
        kind="hydra", data=DataPlan(path=[str(texts)]), distill=DistillPlan(target="shipped:models/gpt-mini")
    )
    assert "data.completions" not in fingerprint(fitted_to_target(of_text))
    alone = check(fitted_to_target(Recipe(task="lm", data=DataPlan(path=[str(prompts)]))))
    assert alone.data.text == "prompt" and not alone.data.completions


def test_the_depths_that_eagle3_reads() -> None:
    assert usual_taps(8) == [2, 4, 5] and usual_taps(32) == [2, 16, 29]  # those of its authors' code
    for layers in range(2, 80):
        first, second, third = usual_taps(layers)
        assert 0 <= first < second < third <= layers


@pytest.mark.full
def test_a_target_with_several_ends_and_no_token_for_filling_up(
    prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As most decoder-only models of the hub. EAGLE-3 reads three of its two layers and embeddings."""
    folder = networks.save(tmp_path / "llama", "llama", seed=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        told = json.loads((folder / name).read_text()) | {"pad_token_id": None, "eos_token_id": [1, 2]}
        (folder / name).write_text(json.dumps(told))
    words = ["recipe=eagle3", "eagle.vocabulary=8", f"distill.target={folder}", f"data.path=[{prompts}]"]
    assert main(["train", *words, f"output={tmp_path / 'layer'}", *SMALL]) == 0, capfd.readouterr().err
    eagle = Eagle.load(tmp_path / "layer", AutoModelForCausalLM.from_pretrained(folder), "draft")
    assert eagle.shape.taps == (0, 1, 2) and {1, 2} <= {*eagle.draft_vocabulary.tolist()}
    assert "α of drafted token 4, held-out rows, T=1" in (tmp_path / "layer" / "README.md").read_text()


@pytest.mark.full
def test_texts_too_short_to_measure_on_end_a_training_before_it_begins(
    target: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    short, output = tmp_path / "short.jsonl", tmp_path / "heads"
    short.write_text('{"text": "the dog"}\n' * 20)
    words = ["train", "recipe=medusa", f"distill.target={target}", f"data.path=[{short}]", f"output={output}", *SMALL]
    assert main(words) == 2
    said = capfd.readouterr().err
    assert "data.hold_out: no text of held-out rows has 8 tokens" in said and "data.hold_out=0" in said
    assert not (output / "checkpoints").exists()
    assert main([*words, "data.hold_out=0"]) == 0


def test_alpha_on_shared_outputs_is_the_same(target: Path) -> None:
    first, second = (AutoModelForCausalLM.from_pretrained(target) for _ in range(2))
    sources = [[5, 6, 7, 8], [9, 10, 11, 12]]
    engine = engine_of(first, 43)
    for sampled in (False, True):
        outputs = target_outputs(engine, sources, sampled=sampled, max_new_tokens=6, seed=3)
        shared = alpha(first, second, sources, outputs, sampled=sampled, size=43)
        again = target_outputs(engine, sources, sampled=sampled, max_new_tokens=6, seed=3)
        assert outputs == again and shared == alpha(first, second, sources, again, sampled=sampled, size=43)


@pytest.mark.full
@pytest.mark.parametrize("draft", ["eagle3", "hydra"])
def test_the_command_that_a_message_prints_is_for_this_draft_and_target(
    draft: str, prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = networks.save(tmp_path / "my model", "gpt2", seed=1)
    words = ["run", f"target.path='{folder}'", f"draft={draft}", f"task={prompts}", "dtype=float32", "device=cpu"]
    words.append(f"results={tmp_path}")
    assert main(words) == 2
    said = capfd.readouterr().err
    printed = re.search(r"specbench (train .*?), and give", said)
    assert printed is not None, said
    assert shlex.split(printed[1])[1:3] == [f"recipe={draft}", f"distill.target={folder}"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    assert main([*words, f"draft.path={tmp_path / 'empty'}"]) == 2
    assert f"specbench train recipe={draft} distill.target=TARGET" in capfd.readouterr().err
