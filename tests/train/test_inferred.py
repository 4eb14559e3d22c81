"""Recipes for a decoder-only target, as they are typed: what the target decides, small data, and the card."""

import json
import re
from pathlib import Path

import networks
import pytest

from specbench.cli import main
from specbench.config.paths import conf_dir, shipped

SMALL = [
    "optim.max_steps=2",
    "optim.batch_size=2",
    "optim.warmup_steps=0",
    "data.max_target=16",
    "bf16=false",
    "threads=1",
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return networks.save(tmp_path_factory.mktemp("target") / "smol", "llama", seed=1)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """60 rows without a field 'text'."""
    words = networks.WORDS
    rows = [{"prompt": " ".join(words[(row + place) % 30] for place in range(12))} for row in range(60)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("words", ["recipe=eagle task=lm", "recipe=medusa name=mine", "recipe=gpt-mini-pass"])
def test_a_decoder_only_target_decides_what_a_recipe_leaves_open(
    words: str, target: Path, prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    argv = [*words.split(), f"distill.target={target}", f"data.path=[{prompts}]", f"output={output}", *SMALL]
    argv += ["data.hold_out=200"]
    assert main(["train", *argv]) == 0, capfd.readouterr().err
    said = capfd.readouterr().err
    assert "data.hold_out=200: 12 of 60 rows are held out" in said
    assert "greedy outputs to measure α" in said  # a bar while alpha is measured
    card = (output / "README.md").read_text()
    assert "α of " in card
    named = re.findall(r"recipe=([\w.-]+)", card)
    assert all((conf_dir() / "recipe" / f"{name}.yaml").is_file() for name in named)
    assert bool(named) == ("mine" not in words)


MISTAKES = {
    "": "recipe= is missing",
    "recipe=eagle task=ml": "task=ml: must be seq2seq | lm",
    "recipe=eagle": "distill.target is not set",
    "recipe=specdec distill.target=TARGET data.path=[x]": "is decoder-only, and specdec reads the encoder",
    "recipe=eagle task=seq2seq distill.target=TARGET data.path=[x]": "is decoder-only, which requires task=lm",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words: str, target: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words.replace("TARGET", str(target)).split()]) == 2
    said = capfd.readouterr().err
    assert MISTAKES[words] in said and said.count("specbench:") == 1


def test_a_decoder_without_a_draft_is_shown_drafts_that_need_nothing(
    target: Path, prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", f"target={target}", f"task={prompts}", f"results={tmp_path}", "limit=1", "max_new_tokens=4"]
    argv += ["device=cpu", "dtype=float32", "engine=eager", "resamples=100", "warmup=0", "threads=1"]
    assert main(argv) == 2
    said = capfd.readouterr().err
    assert "use draft=lookup or draft=early-exit" in said and "unigram" not in said
    assert main([*argv, "draft=bigram"]) == 2
    assert "draft=lookup and draft=early-exit require none" in capfd.readouterr().err
    for draft in ("lookup", "early-exit"):  # the suggestions work as printed
        assert main([*argv, f"draft={draft}"]) == 0, capfd.readouterr().err


def test_the_cards_that_ship_name_recipes_that_exist() -> None:
    cards = list(shipped("models").glob("*/README.md"))
    named = {name for card in cards for name in re.findall(r"recipe=([\w.-]+)", card.read_text(encoding="utf-8"))}
    assert named and all((conf_dir() / "recipe" / f"{name}.yaml").is_file() for name in named)
