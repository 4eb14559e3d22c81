"""Toy text and toy recipes: trained in seconds on one core."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.train.recipe_schema import DataPlan, DistillPlan, ModelShape, OptimPlan, Recipe, TokenizerPlan
from tests.support import networks

PEOPLE = {"man": "Mann", "dog": "Hund", "boy": "Junge", "baker": "Bäcker", "king": "König", "farmer": "Bauer"}
DEEDS = {"sees": "sieht", "finds": "findet", "loves": "liebt", "hears": "hört", "paints": "malt", "greets": "grüßt"}
THINGS = {"tree": "Baum", "river": "Fluss", "garden": "Garten", "castle": "Palast", "table": "Tisch", "hat": "Hut"}


def write_jsonl(path: Path, rows: list[dict]) -> str:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return str(path)


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[[str, list[dict]], str]:
    """Write rows to a file of this test; returns its path."""
    return lambda name, rows: write_jsonl(tmp_path / name, rows)


@pytest.fixture
def rows() -> list[dict]:
    made = [
        {"en": f"The {a} {b} the {c} today.", "de": f"Der {d} {e} heute den {f}.", "src": "toy"}
        for a, d in PEOPLE.items()
        for b, e in DEEDS.items()
        for c, f in THINGS.items()
    ]
    return [{**row, "text": row["en"]} for row in made]


@pytest.fixture
def pairs(tmp_path: Path, rows: list[dict]) -> str:
    return write_jsonl(tmp_path / "pairs.jsonl.gz", rows)


@pytest.fixture
def made_recipe(tmp_path: Path) -> Callable[..., Recipe]:
    """Make a recipe that writes to a folder of this test, from its name, its model and its other keys."""

    def made(name: str, model: ModelShape, **keys: Any) -> Recipe:
        common: dict[str, Any] = {"log_steps": 1, "save_steps": 4, "progress": False, "threads": 1}
        return Recipe(name=name, model=model, output=str(tmp_path / name), **common | keys)

    return made


@pytest.fixture
def t5_recipe(made_recipe: Callable[..., Recipe], pairs: str) -> Recipe:
    return made_recipe(
        "toy-t5",
        ModelShape(d_model=32, d_ff=64, d_kv=16, heads=2, encoder_layers=2, decoder_layers=2),
        tokenizer=TokenizerPlan(size=330),
        data=DataPlan(path=[pairs], prefix="go: ", max_source=32, max_target=24),
        optim=OptimPlan(max_steps=6, warmup_steps=2, batch_size=8),
        save_steps=3,
        eval_steps=6,
    )


@pytest.fixture
def nano_recipe(made_recipe: Callable[..., Recipe], t5_recipe: Recipe) -> Recipe:
    return made_recipe(
        "toy-nano",
        ModelShape(d_model=16, d_ff=32, d_kv=16, heads=1, encoder_layers=1, decoder_layers=1, dropout=0.0),
        data=t5_recipe.data,
        optim=OptimPlan(max_steps=4, warmup_steps=1, batch_size=8),
        distill=DistillPlan(target=t5_recipe.output, max_new_tokens=12),
        log_steps=2,
    )


@pytest.fixture
def gpt_recipe(made_recipe: Callable[..., Recipe], pairs: str) -> Recipe:
    return made_recipe(
        "toy-gpt",
        ModelShape(family="gpt2", d_model=32, d_ff=64, heads=2, decoder_layers=2, positions=64, tied=False),
        task="lm",
        tokenizer=TokenizerPlan(kind="wordpiece", size=100),
        data=DataPlan(path=[pairs], max_target=32),
        optim=OptimPlan(max_steps=4, warmup_steps=1, batch_size=4, lr=0.001, lr_scale="flat"),
    )


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
