"""The choices without a file of their own in `conf/`: models, drafts, tasks, trees, stages of recipes, sweeps, rules.

Hydra takes a choice from a file of its own. These are given to it as such files would read by
`compose.unnamed.store_held`, so that a model is one entry in one place, whether it is named as a target or as a draft.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from specbench.config.paths import conf_dir, experiments_dir
from specbench.config.recipes import stages
from specbench.config.rules import RULES, choice_of
from specbench.errors import UserError

GROUPS_HELD = ("model", "target", "draft", "task", "accept", "tree", "recipe", "experiment")
GLOBAL = ("tree", "recipe", "experiment")  # groups whose choices set keys of the whole config
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Held:
    """One choice: what a file of its own in `conf/` would hold, and what it is for."""

    content: dict[str, Any]
    about: str


@cache
def held(group: str) -> dict[str, Held]:
    """The choices of `group`, by name, that have no file of their own."""
    if group == "experiment":
        return _experiments()
    if group == "accept":
        return {name: Held(choice_of(kind), kind.about) for name, kind in RULES.items()}
    if group == "tree":
        return {name: _without_about(entry) for name, entry in _read(conf_dir() / "trees.yaml").items()}
    if group == "task":
        return {
            name: _without_about({"name": name, **entry}) for name, entry in _read(conf_dir() / "tasks.yaml").items()
        }
    if group == "recipe":
        return {name: _without_about({"name": name, **entry}) for name, entry in stages()}
    found = {}
    if group == "draft":
        for name, entry in _read(conf_dir() / "drafts.yaml").items():
            found[name] = Held({"name": name, **entry}, str(entry.get("note") or ""))
    for name, entry in _models().items():
        own = {key: value for key, value in entry.items() if key not in ("target", "draft", "about")}
        keys = {"name": name, **own} if own.get("name", name) else {key: own[key] for key in own if key != "name"}
        about = str(entry.get("about") or entry.get("note") or "")
        if group == "model" or (group == "draft" and entry.get("draft")):
            found[name] = Held(keys, about)
        elif group == "target" and entry.get("target"):
            found[name] = Held({"defaults": _defaults(entry["target"]), **keys}, about)
    return found


def _defaults(target: Any) -> list[Any]:
    """A target's defaults list: its task and its usual draft, unless the command line or an experiment names others."""
    parts = {"task": target} if isinstance(target, str) else target if isinstance(target, dict) else {}
    return [{f"override /{group}@_global_.{group}": name} for group, name in parts.items()] + ["_self_"]


def _models() -> dict[str, dict[str, Any]]:
    return _read(conf_dir() / "models.yaml")


def _without_about(entry: dict[str, Any]) -> Held:
    """An entry of several choices, without what it is for."""
    content = dict(entry)
    return Held(content, str(content.pop("about", "")))


def _experiments() -> dict[str, Held]:
    """Sweeps, each over the whole config."""
    found = {}
    for file in sorted(experiments_dir().glob("*.yaml")):
        for name, sweep in (_read(file).get("sweeps") or {}).items():
            found[name] = _without_about(sweep)
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), _LOADER)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); install specbench again") from error
    return content


def choice_names(group: str) -> list[str]:
    """All names that `group=` takes without another folder or package, in order."""
    return sorted({*held(group), *(file.stem for file in (conf_dir() / group).glob("*.yaml"))})
