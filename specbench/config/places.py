"""A model in a word, the same for every command: NAME, ./FOLDER, ./FILE.gguf, OWNER/NAME[@REVISION][:FILE.gguf].

`target=` and `draft=` take it as choices of Hydra's (`compose.unnamed`), the options of a recipe that name a model as
`model_at` reads it.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from specbench.config.catalogue import held
from specbench.config.extensions import extensions, loaded
from specbench.config.model import ModelConfig
from specbench.config.own_choices import read_choice
from specbench.errors import UserError, closest_first

REPOSITORY = re.compile(r"(?P<hub>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?(:(?P<gguf>[\w./-]+\.gguf))?")
LOCAL = ("/", "./", "../", "~")
SHIPPED = "shipped:"
OF_MODELS = f"{SHIPPED}models/"
NEAREST = 3  # names that a message suggests


def home(word: str) -> str:
    """`word` with '~' in front of it expanded; as it is without such a user. A shell expands only a whole word."""
    return os.path.expanduser(word)


def place_in(value: str) -> dict[str, Any] | None:
    """Where `value` says that something is: the keys `path`, or `hub`, `revision` and `gguf`; None if it is a name."""
    found = REPOSITORY.fullmatch(value)
    is_local = value.startswith(LOCAL) or (value != "." and Path(value).exists() and "/" in value)
    if is_local or ("/" in value and found is None):
        return {"path": str(Path(home(value)))}
    if found is not None:
        return {key: part for key, part in found.groupdict().items() if part is not None}
    return None


def model_at(value: str, key: str, folders: Iterable[Path] = ()) -> ModelConfig:
    """The model that the word `value` of the option `key` names; `folders` hold choices of the user's, as in `conf/`.

    Raises UserError if there is none of that name.
    """
    if value.startswith(OF_MODELS):
        return ModelConfig(shipped=value.removeprefix(OF_MODELS))
    if (place := place_in(value)) is not None:
        return ModelConfig(**place)
    content = _choice(value, folders)
    if content is None:
        raise UserError(f"{key}={value}: no such model; {_instead(value, key)}")
    known = {one.name for one in fields(ModelConfig)}
    return ModelConfig(**{name: part for name, part in content.items() if name in known})


def _choice(name: str, folders: Iterable[Path]) -> Mapping[str, Any] | None:
    """The entry of the model `name`, from files in `folders` first, then our own and other packages'; None: unknown."""
    for folder in folders:
        for group in ("target", "draft"):
            if (file := folder / group / f"{name}.yaml").is_file():
                content: Mapping[str, Any] = read_choice(file, group) or {}
                return content
    if name in held("model"):
        return held("model")[name].content
    return dict(loaded("targets", name)) if name in extensions("targets") else None


def _instead(value: str, key: str) -> str:
    """Advice on what to write in place of the unknown name `value`."""
    if Path(value).exists():
        return f"for the folder of this name write {key}=./{value}"
    names = ", ".join(closest_first(value, held("model"))[:NEAREST])
    return f"give {key}=./FOLDER, {key}=OWNER/NAME of the hub, or a name: {names}, … ('specbench list target')"
