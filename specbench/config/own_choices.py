"""The files of a user's folder of choices (`--config-dir`): data, whoever wrote them.

Hydra calls functions that a config names (`_target_`, `hydra.callbacks`), sets environment variables (`hydra.job`), and
resolves `${oc.env:NAME}`. A folder that came with somebody's models must do none of that, so its files are read here
before Hydra reads them: they may hold the keys of their choice, and experiments what a sweep needs besides.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from specbench import border
from specbench.border import Unreadable
from specbench.errors import UserError

LARGEST = 2**20  # bytes of a file
MOST_NODES = 10_000  # with each alias counted as what it stands for
EXPERIMENT = "experiment"  # the group whose files set keys of the whole config
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PACKAGE = re.compile(r"^\s*#\s*@package\s+(.*?)\s*$", re.MULTILINE)
HYDRA = re.compile(r"(^|[\s/@.])hydra($|[\s/@.:])")
# An experiment may say where its jobs run, and over which values.
ALLOWED_DEFAULTS = re.compile(r"override /hydra/(launcher|sweeper)")
ALLOWED_HYDRA = {"mode": None, "sweeper": {"params", "max_batch_size"}}
RESOLVER = re.compile(r"\$\{.*:", re.DOTALL)


def read_choice(file: Path, group: str) -> Any:
    """The content of a file of `group` in a user's folder. Raises UserError if it is more than data."""
    try:
        text = border.read_text(file, LARGEST)
        require_plain(text)
        content = yaml.load(text, _LOADER)
        _require_data(text, content, group)
    except Unreadable as error:
        raise UserError(f"{file}: {error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{file}: is not YAML ({' '.join(str(error).split())})") from error
    except (RecursionError, ValueError) as error:  # PyYAML's own of a date or number that is none
        raise UserError(f"{file}: is not YAML ({error})") from error
    return content


def require_plain(text: str) -> None:
    """Raises Unreadable if YAML nests deeply, is large once its aliases are written out, or names other types.

    It reads the events, of which none is larger than its text: the nodes of a few lines of aliases may fill the memory.
    """
    sizes: dict[str | None, int] = {}  # nodes of each anchor
    begun: list[tuple[str | None, int]] = []  # the open collections: anchor, and nodes before it
    nodes = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.AliasEvent):
            nodes += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            nodes += 1
            if (tag := getattr(event, "tag", None)) is not None and tag != "!":
                raise Unreadable(f"the tag {tag} is not read; write plain YAML")
            if isinstance(event, yaml.CollectionStartEvent):
                begun.append((event.anchor, nodes))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            if anchor is not None:
                sizes[anchor] = nodes - before + 1
        if nodes > MOST_NODES:
            raise Unreadable(f"more than {MOST_NODES} values, with its aliases written out")
        if len(begun) > border.DEEPEST:
            raise Unreadable(f"it nests more than {border.DEEPEST} levels deep")


def _require_data(text: str, content: Any, group: str) -> None:
    in_experiment = group == EXPERIMENT
    for package in PACKAGE.findall(text):
        if package != "_group_" and not (in_experiment and package == "_global_"):
            where = "" if in_experiment else f", which only files of {EXPERIMENT}/ may hold"
            raise Unreadable(f"'# @package {package}'{where}; leave it out")
    if group.partition("/")[0] == "hydra":
        raise Unreadable("a choice of Hydra's own, which a folder of choices does not add")
    if in_experiment and isinstance(content, dict):
        content = dict(content)
        _require_sweep(content.pop("hydra", None))
        content["defaults"] = [one for one in _listed(content.get("defaults")) if not _is_launcher(one)]
    for words in _words(content):
        if "_target_" in words:
            raise Unreadable(f"{words!r}: a choice calls no function")
        if HYDRA.search(words):
            raise Unreadable(f"{words!r}: a choice sets nothing of Hydra; give it on the command line")


def _require_sweep(of_hydra: Any) -> None:
    """Raises Unreadable if an experiment sets more of Hydra than the values of a sweep."""
    for key, value in (of_hydra or {}).items() if isinstance(of_hydra, dict | None) else [("", of_hydra)]:
        inner = ALLOWED_HYDRA.get(key, set())
        if inner is not None and not (isinstance(value, dict) and inner >= value.keys()):
            raise Unreadable(
                f"hydra.{key}: an experiment sets hydra.sweeper.params and nothing else of Hydra; give it on the "
                "command line"
            )
        for words in _words(value):
            if "_target_" in words:
                raise Unreadable(f"{words!r}: a choice calls no function")


def _is_launcher(entry: Any) -> bool:
    return isinstance(entry, dict) and all(
        ALLOWED_DEFAULTS.fullmatch(str(key)) and re.fullmatch(r"\w+", str(value)) for key, value in entry.items()
    )


def _words(value: Any) -> Iterator[str]:
    """All keys of a content, and the values of its defaults list. Raises Unreadable for a resolver in any text."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            if key == "defaults":
                yield from (str(one) for entry in _listed(item) for one in _parts(entry))
            yield from _words(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _words(item)
    elif isinstance(value, str) and RESOLVER.search(value):
        raise Unreadable(f"{value!r}: only ${{KEY}} is replaced in a choice, no ${{NAME:...}}")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _parts(entry: Any) -> Iterator[Any]:
    if isinstance(entry, dict):
        for key, value in entry.items():
            yield key
            yield from _listed(value)
    else:
        yield entry
