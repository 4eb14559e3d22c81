"""`specbench VERB --help`: what the verb does, its choices, and each key with its default and help.

The help of a key stands beside the key, in the dataclass that types it. For a run, the keys that most runs set come
first, then all others in groups. Keys of one kind of draft or one rule are left to `draft=NAME --help` and `accept=NAME
--help`, and long lists of names to `specbench list`.
"""

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from specbench.compose.suggestions import no_such_choice
from specbench.compose.unnamed import store_extensions
from specbench.config.catalogue import choice_names, held
from specbench.config.draft import DraftConfig
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.keys import Key, keys_of, require
from specbench.config.model import ModelConfig
from specbench.config.own_choices import read_choice
from specbench.config.paths import conf_dir
from specbench.config.rules import RULE_OF, RULES, rule_names
from specbench.config.schema import RunConfig
from specbench.errors import UserError
from specbench.methods.model.config import ModelDraftConfig

WIDTH = 118
INDENT = 28  # where help begins
FEW_NAMES = 10  # choices that are listed here; `specbench list` has longer lists
MODEL_PLACES = "OWNER/NAME[@REVISION] of the hub, ./FOLDER, or "
PLACES = {"target": MODEL_PLACES, "draft": MODEL_PLACES, "task": "./FILE of prompts, OWNER/NAME of the hub, or "}
# What most runs set; for a group only its choices.
COMMON = (
    "target", "draft", "task", "gamma", "sampling.temperature", "limit", "max_new_tokens", "dtype", "device", "engine",
    "threads", "batch", "accept", "tree", "runs", "seed", "results", "experiment",
)  # fmt: skip
REST = "without draft= and accept=, --help lists all other options"
OTHERS = "all others; of one draft or one rule: draft=NAME --help, accept=NAME --help"
# The keys of a run, by what they describe: each key, or the part of the config that it is in.
PARTS = {
    "model": ("target", "dtype", "device", "engine", "numerics", "threads"),
    "draft": ("draft",),
    "decoding": ("gamma", "batch", "max_new_tokens", "seed", "sampling", "accept", "tree", "simulate"),
    "task": ("task", "context", "limit", "until"),
    "output": ("results", "force", "warmup", "reuse", "runs", "experiment"),
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
    words: Sequence[str] = (),
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
        words: the command line. If it picks drafts or rules of a run, the help shows only their options.

    Raises:
        UserError: there is no such draft or rule.
    """
    if schema is RunConfig and (chosen := list(_chosen_sections(words))):
        return "\n\n".join([f"usage: specbench {verb} {line}", *chosen, REST])
    if schema is RunConfig:
        sections = _run_sections(verb, groups)
    else:
        told = {option.partition("=")[0] for option in options or {}}
        sections = _own_sections(verb, schema, groups, {*unused}, told)
    option_rows = "\n".join(_row(name, about_it) for name, about_it in {**(options or {}), **HYDRA}.items())
    return "\n\n".join([f"usage: specbench {verb} {line}", about.strip(), *sections, option_rows])


def _run_sections(verb: str, groups: Sequence[str]) -> list[str]:
    """The keys that most runs set, then a section for each of PARTS with all other keys."""
    by_part: dict[str, list[Key]] = {}
    common: dict[str, Key] = {}
    for key in keys_of(RunConfig):
        part, _, name = key.name.partition(".")
        if key.verbs and verb not in key.verbs:
            continue
        if key.name in COMMON:
            common[key.name] = key
        elif not (part == "draft" and _is_of_a_kind(name)) and not (part == "accept" and name in RULE_OF):
            by_part.setdefault(part, []).append(key)
    choices, targets = _choices(groups), by_part["target"]
    listed = [name for name in COMMON if name in choices or name in common]
    rows = [choices.pop(name) if name in choices else _key_row(common.pop(name)) for name in listed]
    sections = ["\n".join(["common options:", *rows]), f"{OTHERS}\n{'-' * len(OTHERS)}"]
    for title, names in PARTS.items():
        rows = [row for name in names for row in _key_rows(name, by_part.pop(name, []), targets)]
        sections.append("\n".join([f"{title}:", *rows]))
    assert not by_part and not choices and not common, (by_part, choices, common)
    return sections


def _is_of_a_kind(name: str) -> bool:
    """Whether a key of a draft is one that not every draft, or model, has."""
    return name not in {one.name for one in (*fields(DraftConfig), *fields(ModelConfig))}


def _chosen_sections(words: Sequence[str]) -> Iterator[str]:
    """A section for each draft and each rule that `words` pick, with its options."""
    folders = [Path(after) for word, after in pairwise(words) if word == "--config-dir"]
    for word, after in pairwise([*words, ""]):
        key, equals, value = word.partition("=")
        names = re.findall(r"[^\s,\[\]]+", value if equals else after if word.startswith("--") else "")
        for name in names:
            if key.lstrip("-") in ("draft", "draft.kind"):
                yield _options(f"draft={name}", _draft_rows(name if key.endswith("kind") else _kind_of(name, folders)))
            elif key.lstrip("-") == "accept":
                yield _options(f"accept={name}", _rule_rows(name))


def _options(choice: str, rows: Sequence[str]) -> str:
    return "\n".join([f"options of {choice}:", *rows]) if rows else f"{choice} has no options of its own"


def _kind_of(draft: str, folders: Sequence[Path]) -> str:
    """The kind of the draft that is picked by this name, or place."""
    for folder in [*folders, conf_dir()]:
        if (file := folder / "draft" / f"{draft}.yaml").is_file():
            content = read_choice(file, "draft") if folder in folders else yaml.safe_load(file.read_text("utf-8"))
            return str(content.get("kind", ModelDraftConfig.kind))
    if draft in DRAFT_KINDS:
        return draft
    if (choice := held("draft").get(draft)) is not None:
        return str(choice.content.get("kind", ModelDraftConfig.kind))
    if "/" in draft:
        return ModelDraftConfig.kind
    raise UserError(no_such_choice("draft", draft, choice_names("draft")))


def _draft_rows(kind: str) -> list[str]:
    require(kind in DRAFT_KINDS, "draft.kind", kind, " | ".join(DRAFT_KINDS))
    config = DRAFT_KINDS[kind]
    own = [_key_row(key) for key in keys_of(config, "draft.") if _is_of_a_kind(key.name.removeprefix("draft."))]
    return [*([_row("draft.*", "the options of target")] if issubclass(config, ModelConfig) else []), *own]


def _rule_rows(rule: str) -> list[str]:
    require(rule in rule_names(), "accept", rule, " | ".join(rule_names()))
    return [_key_row(key) for key in keys_of(RULES[rule], "accept.")] if rule in RULES else []


def _own_sections(
    verb: str, schema: type[Any], groups: Sequence[str], unused: Collection[str], told: Collection[str]
) -> list[str]:
    """Choices, the verb's own keys (plain ones first, then by part), and the keys that it shares with a run.

    Of the shared keys, those that most commands set are explained, unless its options have `told` them; others are
    named.
    """
    in_run = (key for key in keys_of(RunConfig) if not key.verbs or "run" in key.verbs)
    of_run = {key.name: key.about for key in in_run} if "target" in schema.__dataclass_fields__ else {}
    sections: dict[str, list[Key]] = {"": []}
    also: dict[str, Key] = {}
    for key in keys_of(schema):
        if key.verbs and verb not in key.verbs:
            continue
        if of_run.get(key.name) == key.about:
            also[key.name] = key
        else:
            sections.setdefault(key.name.rpartition(".")[0], []).append(key)
    shown = ["\n".join(_choices(groups).values())] if groups else []
    for section, keys in sections.items():
        if keys:
            shown.append("\n".join(_key_rows(section, keys, sections.get("target", []))))
    parts = {name.partition(".")[0]: None for name in also}
    picked = _choices([name for name in PLACES if name in parts])
    common = {
        name: picked[name] if name in picked else _key_row(also[name])
        for name in COMMON
        if name.partition(".")[0] not in unused and name not in told and (name in picked or name in also)
    }
    if common:
        shown.append("\n".join(["common options:", *common.values()]))
    named = ", ".join(name for name in parts if name not in unused and (name in picked or name not in common))
    return [*shown, _row("more", f"options of these, as in `specbench run --help`: {named}")] if named else shown


def _key_rows(section: str, keys: Sequence[Key], targets: Sequence[Key]) -> list[str]:
    """A row for each key of `section`; a draft's keys that repeat the keys `targets` share one row."""
    rows = []
    if section == "draft" and targets:
        shared = {key.name.removeprefix("target."): key.about for key in targets}
        keys = [key for key in keys if shared.get(key.name.removeprefix("draft.")) != key.about]
        rows.append(_row("draft.*", "the options of target, and:"))
    return [*rows, *map(_key_row, keys)]


def _key_row(key: Key) -> str:
    return _row(f"{key.name}={key.default}", key.about)


def _choices(groups: Sequence[str]) -> dict[str, str]:
    """A row for each group of choices: its default, and its names or the place of their list."""
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
    """`name` and its `meaning`, in two columns; a long name and a short meaning share a line."""
    if len(name) + 4 > INDENT and len(name) + 4 + len(meaning) <= WIDTH:
        return f"  {name}  {meaning}"
    head = f"  {name}".ljust(INDENT) if len(name) + 4 <= INDENT else f"  {name}\n{' ' * INDENT}"
    lines = textwrap.wrap(meaning, WIDTH - INDENT, break_on_hyphens=False)
    return head + f"\n{' ' * INDENT}".join(lines)
