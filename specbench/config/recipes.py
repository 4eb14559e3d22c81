"""The project's own recipes: which folders they make, and the stages that some of them begin with.

A stage is a recipe NAME-STAGE, an entry of the file of the recipe that continues from what it trains.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from specbench.config.paths import conf_dir

STAGES = "stages"  # the key of a recipe's file
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def recipe_files() -> dict[str, Path]:
    """The file of each recipe that has one of its own."""
    return {file.stem: file for file in sorted((conf_dir() / "recipe").glob("*.yaml"))}


def stages() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the entry of each stage of a recipe."""
    for recipe, file in recipe_files().items():
        text = file.read_text(encoding="utf-8")
        if f"\n{STAGES}:" not in text:  # a tenth of the time that reading all takes
            continue
        for stage, entry in yaml.load(text, _LOADER)[STAGES].items():
            yield f"{recipe}-{stage}", entry


def recipe_content(name: str) -> Mapping[str, Any]:
    """The keys that a recipe or a stage sets itself; none if there is no recipe of this name."""
    files = recipe_files()
    if name not in files:
        return dict(stages()).get(name, {})
    content: Mapping[str, Any] = yaml.load(files[name].read_text(encoding="utf-8"), _LOADER)
    return content


def made_by(path: str) -> str:
    """How the model folder `path` is made and how long that takes, for a message; '' if no recipe makes it."""
    command = _command(path)
    if not command:
        return ""
    first = (_recipe(path).get("tokenizer") or {}).get("start_from") or ""
    before = "" if Path(first).is_dir() else _command(first)
    return f"{command} makes it" + (f", after {before}" if before else "")


def _command(path: str) -> str:
    recipe = _recipe(path)
    takes = f" ({recipe['takes']})" if "takes" in recipe else ""
    return f"specbench train recipe={Path(path).name}{takes}" if recipe else ""


def _recipe(path: str) -> Mapping[str, Any]:
    """The recipe that writes to `path` by default."""
    return recipe_content(Path(path).name) if Path(path).parent == Path("models") else {}


def training_command(recipe: str, target: str | None = None) -> str:
    """The command that trains a draft for `target` (None: unknown)."""
    start = " model.start_from=DRAFT" if recipe == "pard" else ""  # it trains an ordinary small model on
    return f"specbench train recipe={recipe} distill.target={shlex.quote(target or 'TARGET')} 'data.path=[FILE]'{start}"
