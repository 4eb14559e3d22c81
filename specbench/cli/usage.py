"""`specbench VERB --help`: what the verb does, its choices, and each key with its default and help.

The help of a key stands beside the key, in the dataclass that types it. The keys of a run are in groups; long lists of
names are left to `specbench list`.
"""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from specbench.compose.unnamed import store_extensions
from specbench.config.catalogue import choice_names
from specbench.config.keys import Key, keys_of
from specbench.config.paths import conf_dir
from specbench.config.schema import RunConfig

WIDTH = 118
INDENT = 28  # where help begins
FEW_NAMES = 10  # choices that are listed here; `specbench list` has longer lists
MODEL_PLACES = "OWNER/NAME[@REVISION] of the hub, ./FOLDER, or "
PLACES = {"target": MODEL_PLACES, "draft": MODEL_PLACES, "task": "./FILE of prompts, OWNER/NAME of the hub, or "}
# The keys of a run, by what they describe: each key, or the part of the config that it is in.
PARTS = {
    "model": ("target", "dtype", "device", "engine", "numerics", "threads"),
    "draft": ("draft",),
    "decoding": ("gamma", "batch", "max_new_tokens", "seed", "sampling", "accept", "tree", "simulate"),
    "task": ("task", "context", "limit", "until"),
    "output": ("results", "force", "warmup", "reuse", "runs", "resamples", "experiment"),
}
HYDRA = {
    "--cfg job": "show the whole config instead of running it",
    "--config-dir DIR": "your own targets, drafts, tasks and experiments, in folders as in conf/",
}


def usage(
    verb: str,
    about: str,
    schema: type[Any],
    *,
    line: str = "[key=value ...]",
    groups: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    unused: Collection[str] = (),
) -> str:
    """The help of a verb that takes `key=value`.

    Args:
        verb: its name.
        about: what it does.
        schema: the dataclass of its keys; a key that means the same in a run is only named.
        line: what follows the verb in the line of usage.
        groups: the folders of conf/ whose choices are listed.
        options: options with their help.
        unused: keys that the verb does not accept.
    """
    sections = _run_sections(groups) if schema is RunConfig else _own_sections(verb, schema, groups, unused)
    option_rows = "\n".join(_row(name, about_it) for name, about_it in {**(options or {}), **HYDRA}.items())
    return "\n\n".join([f"usage: specbench {verb} {line}", about.strip(), *sections, option_rows])


def _run_sections(groups: Sequence[str]) -> list[str]:
    """A section for each of PARTS: its choices with their defaults, then its keys."""
    by_part: dict[str, list[Key]] = {}
    for key in keys_of(RunConfig):
        by_part.setdefault(key.name.partition(".")[0], []).append(key)
    choices, targets = _choices(groups), by_part["target"]
    sections = []
    for title, names in PARTS.items():
        rows = [choices.pop(name) for name in names if name in choices]
        for name in names:
            rows += _key_rows(name, by_part.pop(name, []), targets)
        sections.append("\n".join([f"{title}:", *rows]))
    assert not by_part and not choices, (by_part, choices)
    return sections


def _own_sections(verb: str, schema: type[Any], groups: Sequence[str], unused: Collection[str]) -> list[str]:
    """Choices, the verb's own keys, plain ones first, then those of each part, and the names of keys of a run."""
    of_run = {key.name: key.about for key in keys_of(RunConfig)} if "target" in schema.__dataclass_fields__ else {}
    sections: dict[str, list[Key]] = {"": []}
    also: dict[str, None] = {}
    for key in keys_of(schema):
        if key.verbs and verb not in key.verbs:
            continue
        if of_run.get(key.name) == key.about:
            also[key.name.partition(".")[0]] = None
        else:
            sections.setdefault(key.name.rpartition(".")[0], []).append(key)
    shown = ["\n".join(_choices(groups).values())] if groups else []
    for section, keys in sections.items():
        if keys:
            shown.append("\n".join(_key_rows(section, keys, sections.get("target", []))))
    named = ", ".join(name for name in also if name not in unused)
    return [*shown, _row("also", f"as in `specbench run --help`: {named}")] if named else shown


def _key_rows(section: str, keys: Sequence[Key], targets: Sequence[Key]) -> list[str]:
    """A row for each of the keys of `section`; those of a draft that the keys `targets` say already are one row."""
    rows = []
    if section == "draft" and targets:
        shared = {key.name.removeprefix("target."): key.about for key in targets}
        keys = [key for key in keys if shared.get(key.name.removeprefix("draft.")) != key.about]
        rows.append(_row("draft.*", "the options of target, and:"))
    return [*rows, *(_row(f"{key.name}={key.default}", key.about) for key in keys)]


def _choices(groups: Sequence[str]) -> dict[str, str]:
    """A row for each group of choices: its default, and its names or where they are listed."""
    added, default = store_extensions(), _defaults()
    rows = {}
    for group in groups:
        own = choice_names(group)
        more = sorted(added.get(group, ()))
        names = [*own, *more] if len(own) <= FEW_NAMES else [*more, f"one of {len(own)} names: specbench list {group}"]
        rows[group] = _row(f"{group}={default.get(group) or 'NAME'}", PLACES.get(group, "") + ", ".join(names))
    return rows


def _defaults() -> dict[str, str | None]:
    """The choices that a run has by default, by group."""
    composed = yaml.safe_load((conf_dir() / "run.yaml").read_text(encoding="utf-8"))["defaults"]
    return {group: name for entry in composed if isinstance(entry, dict) for group, name in entry.items()}


def _row(name: str, meaning: str) -> str:
    """`name` and its `meaning`, in two columns."""
    head = f"  {name}".ljust(INDENT) if len(name) + 4 <= INDENT else f"  {name}\n{' ' * INDENT}"
    lines = textwrap.wrap(meaning, WIDTH - INDENT, break_on_hyphens=False)
    return head + f"\n{' ' * INDENT}".join(lines)
