"""Where the files that come with the package lie."""

import shlex
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

import yaml

from specbench.errors import UserError, error_line

PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The folder of what can be picked: inside the package in a wheel, beside it in a checkout."""
    return _beside_or_inside("conf")


def experiments_dir() -> Path:
    """The folder of the paper's tables and figures and of its printed values; found as `conf_dir` is."""
    return _beside_or_inside("experiments")


def _beside_or_inside(name: str) -> Path:
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def shipped(*parts: str) -> Path:
    """A model folder or data file that ships with the project."""
    return PACKAGE.joinpath("shipped", *parts)


# Which folders the project's own recipes make: a model that was never released is trained first.


def made_by(path: str) -> str:
    """How the model folder `path` is made and how long that takes, for a message; '' where no recipe makes it."""
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
    file = conf_dir() / "recipe" / f"{Path(path).name}.yaml"
    if Path(path).parent != Path("models") or not file.is_file():
        return {}
    content: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


def training_command(recipe: str, target: str | None = None) -> str:
    """The command that trains a draft for `target` (None: unknown)."""
    start = " model.start_from=DRAFT" if recipe == "pard" else ""  # it trains an ordinary small model on
    return f"specbench train recipe={recipe} distill.target={shlex.quote(target or 'TARGET')} 'data.path=[FILE]'{start}"


# Drafts, rules, tasks and targets of other packages, found by entry points (docs/reference.md#extending).
#
# An entry point's name is the name to pick. Names are read from the metadata of installed packages; the object of an
# entry point is imported when it is needed.


Group = Literal["drafts", "rules", "tasks", "targets"]


@cache
def extensions(group: Group) -> dict[str, EntryPoint]:
    """The entry points of `specbench.GROUP`, by name. Raises UserError where two packages add the same name."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=f"specbench.{group}"):
        before = found.setdefault(entry.name, entry)
        if before.value != entry.value:
            raise UserError(f"specbench.{group}: two packages add {entry.name} ({before.value} and {entry.value})")
    return found


def loaded(group: Group, name: str) -> Any:
    """The object of the entry point `name`. Raises UserError if it cannot be imported."""
    entry = extensions(group)[name]
    try:
        return entry.load()
    except Exception as error:  # whatever another package raises when it is imported
        package = entry.dist.name if entry.dist is not None else entry.module
        raise UserError(
            f"specbench.{group}: {name} of {package} cannot be loaded ({error_line(error)}); fix or uninstall it"
        ) from error
