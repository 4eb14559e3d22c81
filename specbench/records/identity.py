"""When two records are of one config: the keys of the frozen config that differ from their defaults, and a digest.

A key that is at its default counts as absent, so that a record older than a key agrees with one that has it at its
default. The folder of a record and the description of a checkpoint are not part of the measurement.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache

from specbench.config.draft import REMOVED_DEFAULTS
from specbench.config.schema import RunConfig
from specbench.files import json_digest

NOT_MEASURED = ("results", "force")
PROSE = "note"
NESTED = re.compile(r"\.(?:via|inner)(?=\.)")  # the drafts that a draft is made of have the defaults of a draft

Config = Mapping[str, object]


def settings(config: Config) -> dict[str, object]:
    """The keys of a frozen config, dotted, that are not at their default."""
    defaults = _defaults()
    return {
        key: value
        for key, value in _flat(config).items()
        if defaults.get(NESTED.sub("", key)) != value and not _removed(key, value)
    }


def _removed(key: str, value: object) -> bool:
    """Whether `key` is one that drafts had once, at the default that it had."""
    name = key.rpartition(".")[2]
    return key.startswith("draft.") and any(removed.get(name) == value for removed in REMOVED_DEFAULTS.values())


def config_digest(config: Config, *but: str) -> str:
    """A digest of all keys of a frozen config but those named, each with the keys under it ('draft', 'gamma')."""
    kept = {
        key: value
        for key, value in settings(config).items()
        if not any(key == name or key.startswith(f"{name}.") for name in but)
    }
    return json_digest(kept)


def differing(one: Config, other: Config) -> dict[str, tuple[object, object]]:
    """The dotted keys in which two configs differ, with both values; None stands for the default."""
    mine, theirs = settings(one), settings(other)
    return {
        key: (mine.get(key), theirs.get(key)) for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)
    }


@cache
def _defaults() -> dict[str, object]:
    return _flat(asdict(RunConfig()))


def _flat(config: Config, before: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        elif name != PROSE and not (not before and name in NOT_MEASURED):
            found[f"{before}{name}"] = list(value) if isinstance(value, tuple) else value
    return found
