"""The grammar of key=value: what a word sets, which values a verb takes, and the order of a sweep's jobs."""

from collections.abc import Iterable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from specbench.config.keys import keys_of
from specbench.config.verbs import require_used
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

    Raises UserError if a key has several values that `verb` would not take one by one, or a choice that is picked by
    name is given as a folder.
    """
    listed = {key.name for key in keys_of(schema) if key.listed}
    for word in overrides:
        override = parsed(word)
        if override is None or override.key_or_group.startswith("hydra"):
            continue
        option, value = override.key_or_group, override.value()
        if (override.is_sweep_override() and not sweeps) or (isinstance(value, list) and option not in listed):
            raise UserError(several_values(word, override, verb, sweeps))
        if option in ("accept", "tree", "experiment", "recipe") and isinstance(value, str) and "/" in value:
            raise UserError(f"{option}={value}: is picked by its name; 'specbench list {option}' shows them")


def check_used(overrides: Iterable[str], schema: type[Any], verb: str) -> None:
    """Check that `verb`, with the keys of `schema`, uses each key. Raises UserError for one that it ignores."""
    for word in overrides:
        if (override := parsed(word)) is not None:
            value = word.partition("=")[2] if override.is_sweep_override() else override.value()
            require_used(verb, schema, override.key_or_group, value)


def parsed(word: str) -> Override | None:
    """The override that `word` is; None if it cannot be read, which Hydra will report."""
    if word.startswith("-"):
        return None
    try:
        override: Override = OverridesParser.create().parse_override(word)
    except HydraException:
        return None
    return override


def listed_values(override: Override) -> list[Any] | None:
    """The values of a list, with brackets or, as in a sweep, without; None for a single value."""
    value: Any = override.value()
    value = value.list if isinstance(value, ChoiceSweep) else value
    return value if isinstance(value, list) else None


def by_models(jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """`jobs`, each a list of key=value, sorted by target, and by draft within a target.

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


ALPHA_LISTS = ("draft", "accept")  # that `specbench alpha` compares in one go


def several_values(word: str, override: Override, verb: str, sweeps: bool) -> str:
    """A message that `verb` takes one value of a key, and which verb takes several, with the words to write."""
    key = override.key_or_group
    items = listed_values(override)
    listed = ",".join(map(str, items)) if items is not None else word.partition("=")[2]
    if sweeps:
        return f"{word}: a sweep takes its values without brackets, {key}={listed}"
    if verb != "run":
        return f"{word}: specbench {verb} takes one {key}; give the command once for each"
    others = f", or specbench alpha {key}={listed}" if key in ALPHA_LISTS else ""
    return f"{word}: a run takes one {key}; use specbench sweep {key}={listed}{others}"
