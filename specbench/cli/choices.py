"""The choices that can be picked by name, and what each still needs before it can be used on this machine."""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from specbench.config.catalogue import held
from specbench.config.draft import TextDraftConfig, TrainedConfig
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.extensions import extensions
from specbench.config.model import ModelConfig
from specbench.config.own_choices import read_choice
from specbench.config.paths import conf_dir, shipped
from specbench.config.places import SHIPPED
from specbench.config.recipes import recipe_content
from specbench.errors import UserError
from specbench.records.catalog import Damaged
from specbench.report.paper import times_of

Content = dict[Any, Any]  # of a choice
GROUPS = ("target", "draft", "task", "accept", "tree", "recipe", "experiment")
READ = ("target", "draft", "task")  # groups whose files say what a choice needs
PARTS = (*READ, "model")  # groups that a choice may be made of
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What a choice needs, the least first.
NOW, DOWNLOAD, TRAIN, INSTALL, KEYS = "now", "download", "training", "package", "options"
NEEDS = (NOW, DOWNLOAD, TRAIN, INSTALL, KEYS)


@dataclass(frozen=True)
class Choice:
    """One choice of a group: what it needs (of NEEDS), its source or the keys to give, and its description."""

    group: str
    name: str
    needs: str
    origin: str
    note: str
    default_task: str | None = None  # of a target
    time: str | None = None  # of a recipe or an experiment


def choices(group: str, own: Path | None) -> list[Choice]:
    """The choices of `group`, including the folder `own`: the least demanding first, then by name."""
    folders = [conf_dir(), *([own] if own is not None else [])]
    files = {file.stem: file for file in (conf_dir() / group).glob("*.yaml")} | own_files(group, own)
    search = [f"hydra.searchpath=['file://{own.resolve()}']"] if own is not None else []
    added = {name: note for name, note in of_packages(group).items() if name not in files}
    comments = {name: one.about for name, one in held(group).items()}
    comments |= {name: _comment(file) for name, file in files.items()}
    contents = {name: _read(group, name, folders) for name in comments} if group in READ else {}
    if unread := [name for name in [*comments, *added] if contents.get(name) is None and group in ("draft", "task")]:
        contents |= _contents(group, unread, search)
    found = [_choice(group, name, comments[name], search, contents.get(name)) for name in comments]
    found += [_added(group, name, note, search, contents.get(name)) for name, note in added.items()]
    return sorted(found, key=lambda choice: (NEEDS.index(choice.needs), choice.name))


def own_files(group: str, own: Path | None) -> dict[str, Path]:
    """The files of `group` in a user's folder; a warning names what is more than data, and leaves it out."""
    found = {}
    for file in sorted((own / group).glob("*.yaml")) if own is not None else ():
        try:
            read_choice(file, group)
        except UserError as error:
            warnings.warn(f"left out: {error}", Damaged, stacklevel=4)
        else:
            found[file.stem] = file
    return found


def of_packages(group: str) -> dict[str, str]:
    """The choices of `group` that other packages add, and their notes."""
    if not any(extensions(kind) for kind in ("targets", "drafts", "tasks", "rules")):
        return {}
    from specbench.compose.unnamed import store_extensions

    return store_extensions().get(group, {})


def _read(group: str, name: str, folders: Sequence[Path]) -> tuple[Content, str | None] | None:
    """The content of a choice and the task that it names, as Hydra composes them, from only its files.

    Hydra reads all of its own files for each choice, a tenth of a second of them. None if the choice's defaults list
    holds more than parts by name and a task: then Hydra composes it.
    """
    own = _content_of_choice(group, name, folders)
    if own is None:
        return None
    content: Any = OmegaConf.create()
    task, listed = None, own.pop("defaults", [])
    for entry in listed if "_self_" in listed else [*listed, "_self_"]:
        place, part = next(iter(entry.items())) if isinstance(entry, dict) else (f"/{group}@_here_", entry)
        folder, _, package = place.removeprefix("/").partition("@")
        if part == "_self_":
            content = OmegaConf.merge(content, own)
        elif place == "override /task@_global_.task":
            task = part
        elif place == "override /draft@_global_.draft":
            continue  # a target's usual draft, no part of it
        elif folder not in PARTS or package.partition(".")[0] in ("", "_global_") or " " in place:
            return None
        elif part is not None:
            if (found := _read(folder, part, folders)) is None:
                return None
            content = OmegaConf.merge(content, found[0] if package == "_here_" else {package: found[0]})
    plain: Any = OmegaConf.to_container(content)
    return plain, task


def _content_of_choice(group: str, name: str, folders: Sequence[Path]) -> Content | None:
    """What the file of a choice holds, or its entry in a file that it shares; None if Hydra must read it."""
    file = next((file for folder in folders if (file := folder / group / f"{name}.yaml").is_file()), None)
    if file is None:
        entry = held(group).get(name)
        return None if entry is None else dict(entry.content)
    text = file.read_text(encoding="utf-8")
    own = yaml.load(text, _LOADER) or {}
    return None if "@package" in text or not isinstance(own, dict) else own


def _contents(group: str, names: Sequence[str], search: Sequence[str]) -> dict[str, tuple[Content, str | None]]:
    """The content of the choices `names` of `group`, composed at once: each composition reads all of Hydra's files."""
    from specbench.compose.hydra_app import plain_config

    together = [f"+{group}@choices.n{place}={name}" for place, name in enumerate(names)]
    contents = plain_config([*search, *together])["choices"]
    return {name: (contents[f"n{place}"], None) for place, name in enumerate(names)}


def _target(name: str, search: Sequence[str]) -> tuple[Content, str]:
    """Return the content of the target `name` and the name of its default task, composed.

    A target's file overrides the task, and maybe the draft; Hydra only overrides a choice that is made, so any is.
    """
    from specbench.compose.hydra_app import plain_config

    composed = plain_config([*search, "+task=ende-mini", "+draft=random", f"+target={name}"])
    return composed["target"], composed["task"]["name"]


def _experiment(name: str, search: Sequence[str]) -> tuple[str, str]:
    """The needs of an experiment: of its target, task and draft."""
    from specbench.compose.hydra_app import plain_config

    composed = plain_config([*search, f"experiment={name}"], "run")
    groups = ("target", "task", *(["draft"] if composed["draft"].get("path") else []))
    return max((_place(composed[group], group) for group in groups), key=lambda one: NEEDS.index(one[0]))


def _choice(
    group: str, name: str, comment: str, search: Sequence[str], found: tuple[Content, str | None] | None
) -> Choice:
    if group in ("accept", "tree"):
        return Choice(group, name, NOW, "", comment)
    if group == "recipe":
        recipe = recipe_content(name)
        return Choice(group, name, *_recipe(recipe), comment, time=recipe.get("takes"))
    if group == "experiment":
        return Choice(group, name, *_experiment(name, search), comment, time="; ".join(times_of(name)) or None)
    if found is None or (group == "target" and found[1] is None):
        found = _target(name, search)
    content, task = found
    return Choice(group, name, *_place(content, group), str(content.get("note") or comment), task)


def _added(group: str, name: str, note: str, search: Sequence[str], found: tuple[Content, str | None] | None) -> Choice:
    """A choice of another package."""
    if group == "accept":
        return Choice(group, name, NOW, "", note)
    content, _ = found or _target(name, search)
    if group == "task" and content.get("path"):
        return Choice(group, name, NOW, str(content["path"]), note)
    return Choice(group, name, *_place(content, group), note)


def _comment(file: Path) -> str:
    """The first comment lines of a file of `conf/`."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines if "@package" not in line)


def _place(content: Content, group: str) -> tuple[str, str]:
    """The needs of a target, draft or task, and its source."""
    kind = DRAFT_KINDS[content.get("kind") or "model"]
    if parts := [content[name] for name in kind().parts() if content.get(name)]:
        how = ", drafting with " if content["kind"] == "cascade" else " and "
        origin = how.join(part["name"] for part in parts)
        return max((_place(part, group)[0] for part in parts), key=NEEDS.index), origin
    if content.get("kind") == "retrieval" and find_spec("pydivsufsort") is None:
        return INSTALL, "pip install pydivsufsort"
    if not issubclass(kind, ModelConfig):
        return NOW, "fitted on the task's training text" if issubclass(kind, TextDraftConfig) else "nothing to fit"
    if content.get("path"):
        return _folder(str(content["path"]))
    if issubclass(kind, TrainedConfig) and not content.get("hub"):
        return _trained_for(str(content["kind"]))
    if content.get("shipped"):
        folder = "data" if group == "task" else "models"
        there = shipped(folder, content["shipped"]).exists()
        return (NOW, "ships with specbench") if there else (DOWNLOAD, "a checkout of specbench that holds it")
    if content.get("weights") == "random":
        return NOW, "random weights in its shape"
    return _elsewhere(content, group)


def _trained_for(kind: str) -> tuple[str, str]:
    """Weights that ship, each trained for one target: their names and targets."""
    targets = sorted(folder.name.removesuffix(f"-{kind}") for folder in shipped("models").glob(f"*-{kind}"))
    return (NOW, f"ships for {' and '.join(targets)}") if targets else (KEYS, "draft.path=FOLDER")


def _folder(path: str) -> tuple[str, str]:
    """A folder of the user's, or one that a recipe of its name makes."""
    if (Path(path) / "config.json").is_file():
        return NOW, path
    return TRAIN, f"specbench train recipe={Path(path).name}"


def _elsewhere(content: Content, group: str) -> tuple[str, str]:
    hub = content.get("hub")
    if not hub and group == "task":
        return KEYS, "task.path=FILE"
    if not hub or hub == "???":
        return KEYS, f"{group}=OWNER/NAME"
    cached = _task_is_cached(hub) if group == "task" else _model_is_cached(hub, content.get("revision"))
    return NOW if cached else DOWNLOAD, str(hub)


def _recipe(content: Mapping[str, Any]) -> tuple[str, str]:
    """The needs of a recipe before it trains."""
    data, distill = content.get("data") or {}, content.get("distill") or {}
    ships = bool(data.get("path")) and all(str(file).startswith(SHIPPED) for file in data["path"])
    keys = [] if data.get("hub") or ships else ["data.path=[FILE,...]"]
    keys += ["data.passages.path=[FILE,...]"] if "passages" in data else []
    keys += ["distill.target=FOLDER"] if distill.get("target") in ("???", "") else []
    if keys:
        return KEYS, " ".join(keys)
    return (NOW, "rows that ship with specbench") if ships else (DOWNLOAD, str(data["hub"]))


def _model_is_cached(hub: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    return any(isinstance(try_to_load_from_cache(hub, name, revision=revision), str) for name in names)


def _task_is_cached(hub: str) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    return (Path(HF_HUB_CACHE) / f"datasets--{hub.replace('/', '--')}").is_dir()
