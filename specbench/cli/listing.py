"""`specbench list`: what can be picked, what of it is usable now, and what the rest needs."""

import csv
import itertools
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from specbench.cli.formats import print_rows
from specbench.cli.options import options
from specbench.config.catalogue import choice_names, held
from specbench.config.draft import TextDraftConfig, TrainedConfig
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.extensions import extensions
from specbench.config.model import ModelConfig
from specbench.config.own_choices import read_choice
from specbench.config.paths import conf_dir, shipped
from specbench.config.places import SHIPPED
from specbench.config.recipes import recipe_content
from specbench.errors import UserError, closest_first
from specbench.records.catalog import Damaged
from specbench.report.paper import times_of

# The choices that can be picked by name, and what each still needs before it can be used on this machine.

Content = dict[Any, Any]  # of a choice
GROUPS = ("target", "draft", "task", "accept", "tree", "recipe", "experiment")
READ = ("target", "draft", "task")  # groups whose files say what a choice needs
PARTS = (*READ, "model")  # groups that a choice may be made of
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What a choice needs, the least first.
NOW, DOWNLOAD, TRAIN, INSTALL, KEYS = "now", "download", "training", "package", "options"
NEEDS = (NOW, DOWNLOAD, TRAIN, INSTALL, KEYS)
MEANINGS = {
    NOW: "usable now, with no network",
    DOWNLOAD: "fetched from the hub on first use",
    TRAIN: "after the training that 'from' names",
    INSTALL: "after the installation that 'from' names",
    KEYS: "with the options that 'from' names",
}


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
    files = {file.stem: file for file in (conf_dir() / group).glob("*.yaml")} | _own_files(group, own)
    search = [f"hydra.searchpath=['file://{own.resolve()}']"] if own is not None else []
    added = {name: note for name, note in _of_packages(group).items() if name not in files}
    comments = {name: one.about for name, one in held(group).items()}
    comments |= {name: _comment(file) for name, file in files.items()}
    contents = {name: _read(group, name, folders) for name in comments} if group in READ else {}
    if unread := [name for name in [*comments, *added] if contents.get(name) is None and group in ("draft", "task")]:
        contents |= _contents(group, unread, search)
    found = [_choice(group, name, comments[name], search, contents.get(name)) for name in comments]
    found += [_added(group, name, note, search, contents.get(name)) for name, note in added.items()]
    return sorted(found, key=lambda choice: (NEEDS.index(choice.needs), choice.name))


def _own_files(group: str, own: Path | None) -> dict[str, Path]:
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


def _of_packages(group: str) -> dict[str, str]:
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
    """Return a target's content and its default task, composed.

    It names that, and maybe its usual draft, by overrides, which replace what must be there.
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
    """Weights trained for one target each: those that ship, and for which targets."""
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


USUAL = ("target", "draft", "task", "accept", "tree")  # without a group


def architectures() -> list[dict[str, str]]:
    """The rows of conf/architectures.csv, which tests compare with what decodes."""
    with (conf_dir() / "architectures.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


_LISTED = (*GROUPS, "engine")


def _group(word: str) -> str:
    """The group that `word` names, in the singular or the plural."""
    return word[:-1] if word[:-1] in _LISTED else word


def _no_group(word: str, own: Path | None) -> UserError:
    """What to type in place of `word`, which is no group: the groups that have a choice of that name, else all."""
    having = [
        group for group in GROUPS if word in {*choice_names(group), *_own_files(group, own), *_of_packages(group)}
    ]
    if having:
        commands = " and ".join(f"'specbench list {group} --all'" for group in having)
        describes = "describes" if len(having) == 1 else "describe"
        return UserError(f"{word}: is a choice, not a group; {commands} {describes} it")
    return UserError(f"{word}: no such group; choose from {', '.join(closest_first(word, _LISTED))}")


def main(argv: list[str]) -> int:
    """Run `specbench list` with the words `argv`."""
    parser = options(
        "list", "Targets, drafts, tasks and other choices by name; those that are ready to use come first.", rows=True
    )
    parser.add_argument(
        "group", nargs="?", type=_group, metavar=f"{{{','.join(_LISTED)}}}", help=f"default: {', '.join(USUAL)}"
    )
    parser.add_argument("--all", action="store_true", help="what each is, where it comes from and what it needs")
    arguments = parser.read(argv)
    if arguments.group not in (None, *_LISTED):
        raise _no_group(arguments.group, arguments.config_dir)
    if arguments.group == "engine":
        from specbench.experiment.runnable_engines import engines_here

        rows = engines_here()
        print_rows(arguments.format, [asdict(row) for row in rows], lambda: print("\n".join(row.line for row in rows)))
        return 0
    groups = [arguments.group] if arguments.group else USUAL
    found = [choice for group in groups for choice in choices(group, arguments.config_dir)]
    is_short = not arguments.all and arguments.group in (None, "target")
    print_rows(arguments.format, [asdict(choice) for choice in found], lambda: (_names if is_short else _draw)(found))
    return 0


PAPERS = re.compile(r"t5|flan-t5|gpt")  # the families of the paper's models
# Targets by what they are for; the first that holds names a target's line.
KINDS: dict[str, Callable[[Choice], bool]] = {
    "ships": lambda one: one.origin.startswith("ships"),
    "chat models": lambda one: one.default_task == "mt-bench",
    "T5 and GPT": lambda one: PAPERS.match(one.name) is not None,
    "random weights": lambda one: one.origin.startswith("random"),
    "others": lambda one: True,
}


def _names(found: Sequence[Choice]) -> None:
    """The choices as names, a line for each kind of target, and for each need of the other groups."""
    for group, members in groupby(found, key=lambda choice: choice.group):
        print(f"{group}s" if group in READ else group)
        kinds: dict[str, list[str]] = {}
        for one in members:
            kind = next(kind for kind, holds in KINDS.items() if holds(one)) if group == "target" else one.needs
            kinds.setdefault(kind, []).append(one.name)
        for kind in [*KINDS, *NEEDS]:
            if names := [name for name in kinds.get(kind, ()) if name != "hub"]:
                print(textwrap.fill(", ".join(names), WIDTH, initial_indent=f"  {kind:<17}", subsequent_indent=" " * 19,
                                    break_on_hyphens=False))  # fmt: skip
    needed = {choice.needs for choice in found if choice.group != "target"}
    for needs in (one for one in NEEDS if one in needed):
        meaning = MEANINGS[needs].replace("'from' names", "column 'from' of specbench list --all names")
        print(f"{needs}: {meaning}")
    print(ANY_MODEL)
    print(f"what each is: specbench list --all, or specbench list {' | '.join(GROUPS[1:])}")
    print("what runs on this machine, and why: specbench list engine")


WIDTH = 118
ANY_MODEL = (
    "any model of the hub: target=OWNER/NAME[@REVISION]; any folder: target=./FOLDER; the same with draft=. "
    "Your own rows: task=./FILE.jsonl[.gz]"
)


def _draw(found: Sequence[Choice]) -> None:
    from specbench.report.console import terminal

    console = terminal(soft_wrap=False)
    if not console.is_terminal:
        console.width = 160
    for _, members in groupby(found, key=lambda choice: choice.group):
        console.print(_table(list(members)))
        console.print()
    if {choice.group for choice in found} == {"target"}:
        console.print(_architectures())
        console.print()
    for needs in dict.fromkeys(choice.needs for choice in found):
        console.print(f"{needs}: {MEANINGS[needs]}")
    if KEYS in {choice.needs for choice in found if choice.group == "target"}:
        console.print(ANY_MODEL)
    if len({choice.group for choice in found}) > 1:
        more = [*(group for group in GROUPS if group not in USUAL), "engine"]
        console.print(f"more: {', '.join(f'specbench list {group}' for group in more)}")


def _architectures() -> object:
    """The engine that decodes each architecture, as tests saw it on a CPU with random weights."""
    from rich.table import Table

    rows = architectures()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("architecture", "model_type", "engine=auto", "engines", "trees", "batches", "invariance"):
        table.add_column(column, overflow="fold", no_wrap=column == "model_type")
    for row in rows:
        table.add_row(*row.values())
    return table


def _table(members: Sequence[Choice]) -> object:
    """The choices of a group, with a line between those that need different things."""
    from rich.table import Table

    columns = {"name": members[0].group, "needs": "usable", "origin": "from"}
    columns |= {"default_task": "default task"} if any(choice.default_task for choice in members) else {}
    columns |= {"time": "time"} if any(choice.time for choice in members) else {}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in {**columns, "note": "note"}.items():
        table.add_column(title, overflow="fold", no_wrap=column in ("name", "needs", "default_task"))
    for _, same_needs in groupby(members, key=lambda choice: choice.needs):
        for choice in same_needs:
            table.add_row(*(str(getattr(choice, column) or "") for column in (*columns, "note")))
        table.add_row()
    return table
