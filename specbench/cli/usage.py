"""`specbench VERB --help`: what the verb does, its choices, and each key with its default and help.

The help of a key stands beside the key, in the dataclass that types it.
"""

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from specbench.cli.unnamed import store_extensions
from specbench.config import RunConfig, conf_dir
from specbench.config.keys import Key, keys_of

WIDTH = 118
INDENT = 28  # where help begins
MODEL_PLACES = "OWNER/NAME[@REVISION] of the hub, ./FOLDER, or "
PLACES = {"target": MODEL_PLACES, "draft": MODEL_PLACES, "task": "./FILE of prompts, OWNER/NAME of the hub, or "}
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
    parts += ["\n".join(_choices(groups))] if groups else []
    elsewhere = {} if schema is RunConfig or "target" not in schema.__dataclass_fields__ else _of_a_run()
    keys = [key for key in keys_of(schema) if not key.verbs or verb in key.verbs]
    parts += _sections([key for key in keys if elsewhere.get(key.name) != key.about])
    also = dict.fromkeys(key.name.partition(".")[0] for key in keys if elsewhere.get(key.name) == key.about)
    named = ", ".join(name for name in also if name not in unused)
    parts += [_row("also", f"as in `specbench run --help`: {named}")] if named else []
    parts.append("\n".join(_row(name, said) for name, said in {**(options or {}), **HYDRA}.items()))
    return "\n\n".join(parts)


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


def _choices(groups: Sequence[str]) -> list[str]:
    added = store_extensions()
    named = {
        group: ", ".join(sorted({file.stem for file in (conf_dir() / group).glob("*.yaml")} | {*added.get(group, ())}))
        for group in groups
    }
    return [_row(f"{group}=NAME", PLACES.get(group, "") + names) for group, names in named.items()]


def _row(name: str, said: str) -> str:
    """`name` and what it means, in two columns."""
    head = f"  {name}".ljust(INDENT) if len(name) + 4 <= INDENT else f"  {name}\n{' ' * INDENT}"
    lines = textwrap.wrap(said, WIDTH - INDENT, break_on_hyphens=False)
    return head + f"\n{' ' * INDENT}".join(lines)
