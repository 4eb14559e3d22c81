"""The model card: the model, its training data and time, and its quality.

It does not measure anything itself, nor name a folder of the machine it was made on.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import transformers
import yaml

from specbench.markdown import markdown_table
from specbench.train.places import short_name
from specbench.train.schema import Recipe


@dataclass
class Facts:
    """The measured values that a model card states."""

    parameters: int
    rows: int
    seconds: float
    tokens: int
    loss: float | None
    measured: dict[str, str] = field(default_factory=dict)  # 'BLEU, multi30k-test2016' -> '25.3'


def write_card(recipe: Recipe, facts: Facts, folder: Path, composed_from: str | None = None) -> None:
    """README.md and recipe.yaml beside the weights; `composed_from` is the choice of `recipe=`, None without one."""
    (folder / "recipe.yaml").write_text(portable(recipe), encoding="utf-8")
    data = recipe.data
    where = data.hub or ", ".join(short_name(path) for path in data.path)
    kept = "".join(f", {name} in {list(values)}" for name, values in data.keep.items())
    held = "".join(f"; without {short_name(path)} and near copies" for path in data.exclude)
    running = ", ".join(short_name(path) for path in data.passages.path)
    held += f"; and passages of {running}, to be summarised by their first sentences" if running else ""
    rows = [
        ("parameters", f"{facts.parameters:,}" if facts.parameters < 1e5 else f"{facts.parameters / 1e6:.2f}M"),
        ("data", f"{where}{kept}{held} ({facts.rows:,} rows)"),
        ("steps", f"{recipe.optim.max_steps:,} of {recipe.optim.batch_size * recipe.optim.accumulate} rows"),
        ("training tokens", f"{facts.tokens:,}"),
        ("learning rate", f"{recipe.optim.lr:g} ({recipe.optim.lr_scale}), {recipe.optim.schedule}"),
        ("seed", str(recipe.seed)),
        ("hardware", f"{hardware()}, {facts.seconds / 60:.0f} minutes"),
        ("software", f"torch {torch.__version__}, transformers {transformers.__version__}"),
        ("last loss", "not logged" if facts.loss is None else f"{facts.loss:.3f}"),
    ]
    if recipe.distill.target:
        rows.insert(2, ("distilled from", short_name(recipe.distill.target)))
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


def portable(recipe: Recipe) -> str:
    """The whole recipe as YAML, with file names in place of this machine's folders."""
    whole = asdict(recipe)
    data, tokenizer, passages = whole["data"], whole["tokenizer"], whole["data"]["passages"]
    lists = ((data, "path"), (data, "exclude"), (data, "eval_path"), (passages, "path"), (passages, "exclude"))
    for part, key in (*lists, (tokenizer, "extra")):
        part[key] = [short_name(path) for path in part[key]]
    for part in (data, passages):
        part["test"] = {name: short_name(path) for name, path in part["test"].items()}
    for part, key in (
        (whole, "output"),
        (tokenizer, "start_from"),
        (whole["model"], "start_from"),
        (whole["distill"], "target"),
        (whole["distill"], "start_from"),
    ):
        part[key] = short_name(part[key]) if part[key] else part[key]
    return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)


def hardware() -> str:
    """The processor or GPU in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} CPU cores ({_processor()}), {torch.get_num_threads()} threads"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
