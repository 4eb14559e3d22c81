"""Suggestions after a mistake: the keys and choices that come close to what was written."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specbench.config.keys import keys_of

NOUNS = {"accept": "acceptance rule"}  # of a choice, if the group's name is none
# Names that people give to keys, beside the key's own last part.
ALIASES = {
    "T": "sampling.temperature", "temp": "sampling.temperature", "k": "gamma", "g": "gamma", "K": "gamma",
    "lookahead": "gamma", "prompts": "limit", "n": "limit", "max_tokens": "max_new_tokens", "output": "results",
    "rule": "accept.rule", "model": "target", "dataset": "task", "data": "task", "steps": "optim.max_steps",
}  # fmt: skip
PLACED = ("target", "draft", "task")  # groups that also take a file or a folder


def no_such_key(key: str, schema: type[Any]) -> str:
    """A message that `schema` has no `key`, with the keys whose names come close."""
    known = [one.name for one in keys_of(schema)]
    known = list(dict.fromkeys([*(name.partition(".")[0] for name in known), *known]))
    leaves = {name.rpartition(".")[2]: name for name in reversed(known)}
    meant = ALIASES.get(key) or ALIASES.get(key.rpartition(".")[2])
    close = [meant] if meant in known and meant != key else []
    close += [leaves[key]] if key in leaves else []
    if not close:
        close += difflib.get_close_matches(key, known, n=3)
        close += [leaves[leaf] for leaf in difflib.get_close_matches(key, leaves, n=2, cutoff=0.75)]
    if close:
        return f"{key}: no such option; did you mean {_either(close)}?"
    top = sorted({name.partition(".")[0] for name in known})
    return f"{key}: no such option; the options are {', '.join(top)} (--help says what each is)"


def no_such_choice(group: str, value: str, choices: Iterable[str]) -> str:
    """A message that `group` has no choice `value`, the closest names first."""
    choices = list(choices)
    if value and group.partition("@")[0] in PLACED and Path(value).exists():
        return f"{group}={value}: no such {group}; for the file or folder of this name write {group}=./{value}"
    close = difflib.get_close_matches(value, choices, n=3, cutoff=0.5)
    meant = f"choose from {', '.join(choices)}"
    if close:
        meant = f"did you mean {_either(close)}? 'specbench list {group}' shows all"
    return f"{group}={value}: no such {NOUNS.get(group, group)}; {meant}"


def _either(names: Iterable[str]) -> str:
    """The first three of `names` as a choice in words."""
    *most, last = list(dict.fromkeys(names))[:3]
    return f"{', '.join(most)} or {last}" if most else last
