"""Errors of Hydra, of OmegaConf and of ours as one line for a user: the key, the value and the choices."""

import re
from typing import Any

from specbench.compose.suggestions import no_such_choice, no_such_key
from specbench.config.keys import keys_of
from specbench.errors import UserError, first_line

# Where a sweep may run, and which extra of ours brings it.
LAUNCHERS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}


def one_line(error: BaseException, schema: Any) -> str:
    """An error of Hydra, of OmegaConf or of ours as one line for a user."""
    if isinstance(error, UserError):
        return str(error)
    text = f"{error}\n{error.__cause__ or ''}"
    if found := re.search(r"Could not find '([\w/-]+)/([^'/]*)'.*?Available options in '[^']*':\n(.*)", text, re.S):
        group, value, rest = found.groups()
        listed = rest.partition("Config search path")[0]
        if group == "hydra/launcher" and value in LAUNCHERS:
            return f"{group}={value}: is not installed; pip install 'specbench-toolkit[{LAUNCHERS[value]}]'"
        choices = [line.strip() for line in listed.splitlines() if line.startswith("\t")]
        return no_such_choice(group, value, choices)
    if found := re.search(r"Could not override '([^']*)'", text):
        return no_such_key(found.group(1), schema)
    if found := re.search(r"Key '([^']*)' (?:is )?not in .*?full_key: (\S+)", text, re.S):
        return no_such_key(found.group(2), schema)
    if found := re.search(r"Value '(.*?)' (.*?)\n\s*full_key: (\S+)", text, re.S):
        value, reason, key = found.groups()
        return f"{key}={value}: {_in_words(reason.splitlines()[0], key, schema)}"
    if found := re.search(r"Error parsing override '([^']*)'", text):
        return f"{found.group(1)}: cannot be read; write key=value"
    if found := re.search(r"Error merging override (([^=]*)=(.*))\n(?:Invalid value assigned: )?(.*)", text):
        override, key, value, reason = found.groups()
        reason = f"must be a list, '{key}=[{value}]'" if "not a ListConfig" in reason else reason
        if "is not a subclass of" in reason and (part := _part_of(key, schema)):
            reason = f"is a group of options; set each by its name, such as {part}=VALUE"
        return f"{override}: {reason}"
    return first_line(error)


def _part_of(group: str, schema: Any) -> str | None:
    """The first option of `group`."""
    return next((one.name for one in keys_of(schema) if one.name.startswith(f"{group}.")), None)


# What OmegaConf says of a value of the wrong type, and what we say.
TYPES = {
    "Union[int, str]": "must be a whole number, or one of the words that --help lists",
    "Integer": "must be a whole number",
    "Float": "must be a number", "valid bool": "must be true or false",
}  # fmt: skip


def _in_words(reason: str, key: str, schema: Any) -> str:
    """What the value of `key` must be, where OmegaConf gives `reason`: its type, and what its field allows."""
    said = next((said for kind, said in TYPES.items() if kind in reason), reason)
    allowed = next((one.allowed for one in keys_of(schema) if one.name == key), "")
    return f"{said}: {allowed}" if allowed and said in (TYPES["Integer"], TYPES["Float"]) else said
