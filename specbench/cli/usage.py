"""`specbench VERB --help`: what the verb does, its choices, and each key with its default and help.

The help of a key stands beside the key, in the dataclass that types it. The keys of a run are in groups; long lists of
names are left to `specbench list`.
"""

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    "task": ("task", "limit"),
    "output": ("results", "force", "warmup", "resamples", "experiment"),
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
    parts = [f"usage: specbench {verb} {line}", about.strip()]
    if schema is RunConfig:
        parts += _of_a_run_in_groups(groups)
        parts.append("\n".join(_row(name, said) for name, said in {**(options or {}), **HYDRA}.items()))
        return "\n\n".join(parts)
    parts += ["\n".join(_choices(groups).values())] if groups else []
    elsewhere = {} if schema is RunConfig or "target" not in schema.__dataclass_fields__ else _of_a_run()
    keys = [key for key in keys_of(schema) if not key.verbs or verb in key.verbs]
    parts += _sections([key for key in keys if elsewhere.get(key.name) != key.about])
    also = dict.fromkeys(key.name.partition(".")[0] for key in keys if elsewhere.get(key.name) == key.about)
    named = ", ".join(name for name in also if name not in unused)
    parts += [_row("also", f"as in `specbench run --help`: {named}")] if named else []
    parts.append("\n".join(_row(name, said) for name, said in {**(options or {}), **HYDRA}.items()))
    return "\n\n".join(parts)


def _of_a_run_in_groups(choices: Sequence[str]) -> list[str]:
    """A section for each of PARTS: its choices with their defaults, then its keys."""
    by_part: dict[str, list[Key]] = {}
    for key in keys_of(RunConfig):
        by_part.setdefault(key.name.partition(".")[0], []).append(key)
    shared = {key.name.removeprefix("target."): key.about for key in by_part["target"]}
    rows_of_choices = _choices(choices)
    sections = []
    for title, names in PARTS.items():
        rows = [rows_of_choices.pop(name) for name in names if name in rows_of_choices]
        for name in names:
            members = by_part.pop(name, [])
            if name == "draft":
                rows.append(_row("draft.*", "the keys of target, and:"))
                members = [key for key in members if shared.get(key.name.removeprefix("draft.")) != key.about]
            rows += [_row(f"{key.name}={key.default}", key.about) for key in members]
        sections.append("\n".join([f"{title}:", *rows]))
    assert not by_part and not rows_of_choices, (by_part, rows_of_choices)
    return sections


def _of_a_run() -> dict[str, str]:
    return {key.name: key.about for key in keys_of(RunConfig)}


def _sections(keys: Iterable[Key]) -> list[str]:
    """Plain keys first, then those of each part; a draft's that are a target's are not repeated."""
    sections: dict[str, list[Key]] = {"": []}
    for key in keys:
        sections.setdefault(key.name.rpartition(".")[0], []).append(key)
    shared = {key.name.removeprefix("target."): key.about for key in sections.get("target", ())}
    shown = []
    for section, members in sections.items():
        rows = []
        if section == "draft" and shared:
            members = [key for key in members if shared.get(key.name.removeprefix("draft.")) != key.about]
            rows.append(_row("draft.*", "the keys of target, and:"))
        rows += [_row(f"{key.name}={key.default}", key.about) for key in members]
        shown += ["\n".join(rows)] if rows else []
    return shown


def _choices(groups: Sequence[str]) -> dict[str, str]:
    """A row for each group of choices: its default, and its names or where they are listed."""
    added, default = store_extensions(), _defaults()
    rows = {}
    for group in groups:
        own = choice_names(group)
        more = sorted(added.get(group, ()))
        said = ", ".join([*own, *more])
        if len(own) > FEW_NAMES:
            said = ", ".join([*more, f"one of {len(own)} names: specbench list {group}"])
        rows[group] = _row(f"{group}={default.get(group) or 'NAME'}", PLACES.get(group, "") + said)
    return rows


def _defaults() -> dict[str, str | None]:
    """The choices that a run has by default, by group."""
    composed = yaml.safe_load((conf_dir() / "run.yaml").read_text(encoding="utf-8"))["defaults"]
    return {group: name for entry in composed if isinstance(entry, dict) for group, name in entry.items()}


def _row(name: str, said: str) -> str:
    """`name` and what it means, in two columns."""
    head = f"  {name}".ljust(INDENT) if len(name) + 4 <= INDENT else f"  {name}\n{' ' * INDENT}"
    lines = textwrap.wrap(said, WIDTH - INDENT, break_on_hyphens=False)
    return head + f"\n{' ' * INDENT}".join(lines)
