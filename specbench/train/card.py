"""The model card of a training: README.md and recipe.yaml beside the weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import transformers
import yaml

from specbench.environment import environment
from specbench.formatting import markdown_table
from specbench.nouns import with_noun
from specbench.train.recipe_places import portable, short_name
from specbench.train.recipe_schema import Recipe


@dataclass
class Facts:
    """The measured values that a model card states."""

    parameters: int
    rows: int
    seconds: float
    tokens: int
    loss: float | None
    steps: int
    measured: dict[str, str] = field(default_factory=dict)  # 'BLEU, multi30k-test2016' -> '25.3'


def write_card(recipe: Recipe, facts: Facts, folder: Path, composed_from: str | None = None) -> None:
    """README.md and recipe.yaml beside the weights; `composed_from` is the choice of `recipe=`, None without one."""
    (folder / "recipe.yaml").write_text(
        yaml.safe_dump(portable(asdict(recipe)), sort_keys=False, allow_unicode=True), encoding="utf-8"
    )
    data = recipe.data
    where = data.hub or ", ".join(short_name(path) for path in data.path)
    kept = "".join(f", {name} in {list(values)}" for name, values in data.keep.items())
    held = "".join(f"; without {short_name(path)} and near copies" for path in data.exclude)
    running = ", ".join(short_name(path) for path in data.passages.path)
    held += f"; and passages of {running}, to be summarised by their first sentences" if running else ""
    rows = [
        ("parameters", f"{facts.parameters:,}" if facts.parameters < 1e5 else f"{facts.parameters / 1e6:.2f}M"),
        ("data", f"{where}{kept}{held} ({facts.rows:,} rows)"),
        ("steps", f"{facts.steps:,} of {recipe.optim.batch_size * recipe.optim.accumulate} rows"),
        ("training tokens", f"{facts.tokens:,}"),
        ("learning rate", f"{recipe.optim.lr:g} ({recipe.optim.lr_scale}), {recipe.optim.schedule}"),
        ("seed", str(recipe.seed)),
        ("hardware", f"{hardware()}, {facts.seconds / 60:.0f} minutes"),
        ("software", f"torch {torch.__version__}, transformers {transformers.__version__}"),
        ("last loss", "not logged" if facts.loss is None else f"{facts.loss:.3f}"),
    ]
    if recipe.distill.target:
        rows.insert(2, ("distilled from", short_name(recipe.distill.target)))
    if data.completions:
        rows.insert(
            3,
            (
                "learned on",
                f"the target's own completions of these prompts, up to {recipe.distill.max_new_tokens} tokens",
            ),
        )
    if recipe.distill.states:
        rows.insert(3, ("states of the target", "computed before; the minutes do not count them"))
    if recipe.distill.start_from:
        rows.insert(3, ("started from", short_name(recipe.distill.start_from)))
    rows += facts.measured.items()
    made = f"`specbench train recipe={composed_from}`" if composed_from else "specbench"
    (folder / "README.md").write_text(
        f"---\nlibrary_name: transformers\n---\n# {recipe.name}\n\n"
        f"Trained by {made}; the whole recipe is in `recipe.yaml`.\n\n"
        f"{markdown_table(('what', 'value'), rows)}\n",
        encoding="utf-8",
    )


def hardware() -> str:
    """The processor or GPU in words."""
    machine = environment()
    if machine["gpus"]:
        return f"{len(machine['gpus'])} x {machine['gpus'][0]}"
    return f"{machine['cores']} CPU cores ({machine['cpu']}), {with_noun(machine['threads'], 'thread')}"
