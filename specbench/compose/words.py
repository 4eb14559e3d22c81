"""The grammar of key=value: what a word sets, which values a verb takes, and the order of a sweep's jobs."""

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from specbench.compose.suggest import several_values
from specbench.config.keys import keys_of
from specbench.errors import UserError

GROUPS = ("target", "draft", "task", "accept", "tree", "experiment", "recipe")  # picked by name
# Keys that change the weights in memory, the most expensive first; all others may vary without loading weights.
LOADED_BY = ("target", "device", "dtype", "engine", "draft")


def value_of(overrides: Sequence[str], key: str, default: str) -> str:
    """The value of `key` in the last of `overrides` that sets it, as text."""
    given = [override for override in map(parsed, overrides) if override is not None and override.key_or_group == key]
    return str(given[-1].value()) if given else default


def check_overrides(overrides: Sequence[str], schema: type[Any], verb: str, sweeps: bool) -> None:
    """Check that `verb` takes the values of each key.

    Raises:
        UserError: a key has several values that `verb` would not take one by one, or a choice that is picked by name is
            given as a folder.
    """
    listed = {key.name for key in keys_of(schema) if key.listed}
    for word in overrides:
        override = parsed(word)
        if override is None or override.key_or_group.startswith("hydra"):
            continue
        key, value = override.key_or_group, override.value()
        if (override.is_sweep_override() and not sweeps) or (isinstance(value, list) and key not in listed):
            raise UserError(several_values(word, override, verb, sweeps))
        if key in ("accept", "tree", "experiment", "recipe") and isinstance(value, str) and "/" in value:
            raise UserError(f"{key}={value}: is picked by its name; 'specbench list {key}' shows them")


def parsed(word: str) -> Override | None:
    """The override that `word` is; None if it cannot be read, which Hydra will report."""
    if word.startswith("-"):
        return None
    try:
        override: Override = OverridesParser.create().parse_override(word)
    except HydraException:
        return None
    return override


def by_models(jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """`jobs`, a list of key=value each, sorted so that those of one target stand together, and of one draft within it.

    Otherwise the order is as given: values come in the order in which they first appear.
    """
    ranks: dict[str, int] = {}
    for job in jobs:
        for override in job:
            ranks.setdefault(override, len(ranks))

    def models(job: Sequence[str]) -> list[list[int]]:
        return [[ranks[one] for one in job if _group(one) == group] for group in LOADED_BY]

    return [list(job) for job in sorted(jobs, key=models)]


def _group(override: str) -> str:
    """'draft' of 'draft=t5-small', 'draft.path=DIR' and 'draft@draft.via=t5-nano'."""
    key = override.partition("=")[0].lstrip("+~")
    return key.partition("@")[0].partition(".")[0]
