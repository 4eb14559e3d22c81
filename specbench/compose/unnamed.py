"""Choices without a file in `conf/`: OWNER/NAME or OWNER/NAME@REVISION of the hub, a model folder, a file of rows.

`target=OWNER/NAME` and `draft=./folder` become choices of Hydra's config store before Hydra composes, so that a sweep,
a list of drafts and the parts of a cascade (`draft@draft.via=OWNER/NAME`) take them as they take any other choice.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.core_plugins.file_config_source import FileConfigSource as HydraFileConfigSource
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource as HydraStructuredConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

from specbench.compose.words import listed_values, parsed
from specbench.config.catalogue import GLOBAL, GROUPS_HELD, held
from specbench.config.extensions import Group, extensions, loaded
from specbench.config.own_choices import read_choice
from specbench.config.paths import conf_dir
from specbench.config.places import place_in
from specbench.config.recipes import STAGES

MODELS = ("target", "draft")
GROUPS = (*MODELS, "task")
EXTENDED: dict[str, Group] = {"target": "targets", "draft": "drafts", "task": "tasks", "accept": "rules"}


class FileConfigSource(HydraFileConfigSource):
    """Hydra's reader of files, for which those outside `conf/` are data (`config.own_choices`), and stages no keys.

    It has the name of Hydra's own class: Hydra replaces the class for a scheme only by one of the same name.
    """

    def load_config(self, config_path: str) -> ConfigResult:
        """The content of a file. Raises UserError if a file of a user's folder is more than data."""
        file = Path(self.path, self._normalize_file_name(config_path))
        if file.is_file() and not file.resolve().is_relative_to(conf_dir().resolve()):
            read_choice(file, config_path.rpartition("/")[0])
        found = super().load_config(config_path)
        if config_path.startswith("recipe/") and isinstance(found.config, DictConfig):
            found.config.pop(STAGES, None)  # recipes of their own (`config.recipes`)
        return found


class StructuredConfigSource(HydraStructuredConfigSource):
    """Hydra's reader of its config store, which is not copied with it.

    Hydra copies its readers for each config that it composes. A copy of the store is more than half of that work, and
    guards nothing: the store only gives away copies. Hydra has a class of this name, as of `FileConfigSource`.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> "StructuredConfigSource":
        return copy.copy(self)


@cache
def guard_files() -> None:
    """Let Hydra read the files of users' folders through `FileConfigSource`, and its store in place."""
    Plugins.instance()  # registers Hydra's own
    types = SourcesRegistry.instance().types
    types[FileConfigSource.scheme()] = FileConfigSource
    types[StructuredConfigSource.scheme()] = StructuredConfigSource


def store(group: str, name: str, content: dict[str, Any], package: str | None = None) -> None:
    """Make `content` the choice `name` of `group`, at `package` of the config (unset: the group's place)."""
    ConfigStore.instance().store(group=group, name=name, node=content, package=package)


@cache
def store_held() -> None:
    """Make a choice of everything that shares a file with others."""
    for group in GROUPS_HELD:
        for name, choice in held(group).items():
            package = "_global_" if group in GLOBAL else None
            store(group, name, choice.content, package)


@contextmanager
def conf_of_hydra() -> Iterator[None]:
    """A context in which `hydra.compose` composes from `conf/`, with all choices that it has without a file."""
    store_held()
    guard_files()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield


def store_extensions() -> dict[str, dict[str, str]]:
    """Make a choice of everything that other packages add; returns these choices by group and name."""
    store_held()
    found: dict[str, dict[str, str]] = {}
    for group, kind in EXTENDED.items():
        for name, entry in extensions(kind).items():
            package = entry.dist.name if entry.dist is not None else entry.module
            held = {} if kind == "rules" else loaded(kind, name)
            node = dict(held) if kind in ("tasks", "targets") else {"name": name, "kind": name}
            store(group, name, {"rule": name} if kind == "rules" else node)
            note = node.get("note") or (held.__doc__ if kind == "drafts" else "")
            found.setdefault(group, {})[name] = f"{(note or '').strip()} (from the package {package})".strip()
    return found


def store_unnamed(words: Iterable[str]) -> None:
    """Make a choice of each value of `target=`, `draft=` and `task=` in the overrides `words` that is a place."""
    store_extensions()
    for override in filter(None, map(parsed, words)):
        group = override.key_or_group
        if group not in GROUPS:
            continue
        listed = listed_values(override)
        for value in map(str, [override.value()] if listed is None else listed):
            if (node := _node(group, value)) is not None:
                *folders, name = (part for part in value.split("/") if part)
                store("/".join([group, *folders]), name, node)


def _node(group: str, value: str) -> dict[str, Any] | None:
    """The content of a file of `conf/` for `value`; None if `value` is a name."""
    place = place_in(value)
    if place is None:
        return None
    return place if group in MODELS else {"defaults": ["prompts"], **place}
