"""Lists on the command line: `draft=[unigram,bigram]`, `accept=[exact,lenient]`, `sampling.temperature=[0,1]`.

Likewise `draft.path=[DIR1,DIR2]`, `draft.top_tokens=[null,1000]`, `accept.lenience=[0.5,0.3]`, `tree=[none,sequoia]`
and `tree.size=[8,16]`. Hydra picks one choice of a group. A verb that compares several composes its config once for
each combination: Hydra launches the first, so that its switches and errors are the same, and the others are composed
beside it under the same overrides.
Commas without brackets, Hydra's spelling in a sweep, mean the same here, and so do the lists of an experiment.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, TypeVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from specbench.compose.hydra_app import composing, launch_composed, store_schema
from specbench.compose.hydra_errors import one_line
from specbench.compose.to_schema import Composed, to_schema
from specbench.compose.unnamed import conf_of_hydra, store_unnamed
from specbench.compose.words import check_used, listed_values, parsed, value_of
from specbench.config.rules import RULE_OF
from specbench.config.tree import KEYS_OF
from specbench.errors import UserError

T = TypeVar("T", bound=Composed)
Overrides = list[str]
Lists = dict[str, list[str]]  # the values of each key
DRAFT = ("draft", "draft.path")  # both name drafts, so their lists add up
OWNER = {f"accept.{key}": rule for key, rule in RULE_OF.items()}
ACCEPT = ("accept", *OWNER)  # a rule's own keys go only with that rule
TREE = ("tree", "tree.size", "tree.depth", "tree.children")  # each shape has some of these keys
TEMPERATURE = "sampling.temperature"
TOP_TOKENS = "draft.top_tokens"
CONTEXT = "context"
LISTED = (*DRAFT, TOP_TOKENS, *ACCEPT, *TREE, TEMPERATURE, CONTEXT)


def launch_each(
    task: Callable[[list[T]], None], schema: type[T], argv: list[str], verb: str, defaults: Lists | None = None
) -> None:
    """Call `task` with one config of `schema` for each combination of the lists in `argv`.

    `defaults` holds lists for keys that `argv` does not set.
    """
    common, combinations = combined(argv, schema, verb, defaults)

    def job(composed: DictConfig) -> None:
        given = list(HydraConfig.get().overrides.task)
        for override in combinations[0]:
            given.remove(override)
        try:
            configs = compose_each(schema, [[*given, *these] for these in combinations], composed)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(one_line(error, schema)) from error
        task(configs)

    launch_composed(job, schema, [*common, *combinations[0]], verb, raises=True)


def compose_grid(words: Sequence[str], schema: type[T], verb: str, defaults: Lists | None = None) -> list[T]:
    """The configs that `launch_each` calls its task with, without a command line.

    Raises UserError as `hydra_app.launch`.
    """
    common, combinations = combined(words, schema, verb, defaults)
    each = [[*common, *these] for these in combinations]
    with composing(schema, each[0], verb):
        return compose_each(schema, each)


def combined(
    argv: Sequence[str], schema: type[Composed], verb: str, defaults: Lists | None = None
) -> tuple[Overrides, list[Overrides]]:
    """`split` with the lists of the experiment that `argv` names; UserError for a key that `verb` does not use."""
    check_used(argv, schema, verb)
    argv = [*argv, *experiment_lists(argv, schema)]
    store_unnamed(argv)
    return split(argv, defaults or {})


def compose_each(schema: type[T], overrides: Sequence[Overrides], first: DictConfig | None = None) -> list[T]:
    """A config of `schema` for each of `overrides`; call it within `hydra_app.composing` or a job of Hydra.

    `first` is the config of the first overrides, if it is composed already. A draft that has no head to shorten has one
    config for all sizes of heads.
    """
    rest = [hydra.compose(schema.conf_file, overrides=these) for these in overrides[0 if first is None else 1 :]]
    listed = rest if first is None else [first, *rest]
    found: list[T] = []
    for one, these in zip(listed, overrides, strict=True):
        config = to_schema(one, schema, these, listed)
        if config not in found or not any(override.startswith(f"{TOP_TOKENS}=") for override in these):
            found.append(config)
    return found


def swept_by(argv: Sequence[str], schema: type[Composed]) -> tuple[str, dict[str, str]]:
    """The experiment that `argv` names, and the lists of its sweep by key; '' and none without one."""
    name = value_of(argv, "experiment", "")
    if not name:
        return "", {}
    with conf_of_hydra():
        store_schema(schema)
        try:
            composed = hydra.compose(schema.conf_file, overrides=[f"experiment={name}"], return_hydra_config=True)
        except HydraException as error:
            raise UserError(one_line(error, schema)) from error
    return name, {str(key): str(values) for key, values in (composed.hydra.sweeper.params or {}).items()}


def runs_left_out(argv: Sequence[str], schema: type[Composed]) -> str | None:
    """A message that a run is one of several of the experiment that `argv` names; None if it is not."""
    name, swept = swept_by(argv, schema)
    given = {override.key_or_group for override in filter(None, map(parsed, argv))}
    left = {key: values for key, values in swept.items() if key not in given and "," in values}
    if not left:
        return None
    runs = math.prod(len(values.split(",")) for values in left.values())
    return (
        f"experiment={name}: this is one of {runs} runs, with {', '.join(left)} as they are usually; all of them: "
        f"specbench sweep {' '.join(shlex.quote(word) for word in argv)}"
    )


def experiment_lists(argv: Sequence[str], schema: type[Composed]) -> Overrides:
    """The lists of the experiment that `argv` names, of drafts, rules and temperatures, but for keys that `argv` sets.

    Raises UserError if the experiment has several tasks and `argv` names none: the target's sample is of one task.
    """
    name, swept = swept_by(argv, schema)
    given = {override.key_or_group for override in filter(None, map(parsed, argv))}
    if "," in swept.get("task", "") and "task" not in given:
        first, *_ = tasks = swept["task"].split(",")
        raise UserError(f"experiment={name}: its tasks are {', '.join(tasks)}; name one of them, task={first}")
    for key in swept.keys() & OWNER.keys():
        swept.setdefault("accept", OWNER[key])  # a rule whose keys are listed must be named
    return [f"{key}=[{values}]" for key, values in swept.items() if key in LISTED and key not in given]


def split(argv: Sequence[str], defaults: Lists) -> tuple[Overrides, list[Overrides]]:
    """`argv` without its lists, and the overrides of each combination of their values.

    Drafts vary slowest, then the size of their heads, rules, trees, temperatures and contexts. Raises UserError if a
    list is empty, or a key goes with no rule or tree of the command.
    """
    given: Lists = {}  # each key's values, as overrides
    listed = set()
    for argument in argv:
        override = parsed(argument)
        if override is None or override.key_or_group not in LISTED:
            continue
        key = override.key_or_group
        given[key] = [argument]
        if (values := listed_values(override)) is not None:
            if not values:
                raise UserError(f"{key}=[]: the list is empty")
            given[key] = [f"{key}={as_text(value)}" for value in values]
            listed.add(key)
    axes = []
    if any(key in listed for key in DRAFT):
        several = any(len(given[key]) > 1 for key in DRAFT if key in listed)
        axes.append([[one] for key in DRAFT for one in given.get(key, []) if key in listed or several])
    if TOP_TOKENS in listed:
        axes.append([[one] for one in given[TOP_TOKENS]])
    if any(key in listed for key in ACCEPT):
        axes.append(_rules(given))
    if any(key in listed for key in TREE):
        axes.append(_trees(given))
    if TEMPERATURE in listed:
        axes.append([[one] for one in given[TEMPERATURE]])
    elif TEMPERATURE not in given and TEMPERATURE in defaults:
        axes.append([[f"{TEMPERATURE}={value}"] for value in defaults[TEMPERATURE]])
    if CONTEXT in listed:
        axes.append([[one] for one in given[CONTEXT]])
    moved = {one for axis in axes for these in axis for one in these}
    moved |= {a for a in argv if (p := parsed(a)) and p.key_or_group in listed}
    rest = [argument for argument in argv if argument not in moved]
    return rest, [[one for these in combined for one in these] for combined in product(*axes)]


def _rules(given: Lists) -> list[Overrides]:
    """Each rule, with each value of its own keys; exact if none is named."""
    rules = given.get("accept", ["accept=exact"])
    found, unowned = _with_own_keys(given, rules, ACCEPT[1:], lambda rule, key: OWNER[key] == rule)
    for key in unowned:
        raise UserError(f"{key}: only accept={OWNER[key]} has this option; name that rule too")
    return found


def _trees(given: Lists) -> list[Overrides]:
    """Each shape with each value of the keys that it has."""

    def has(shape: str, key: str) -> bool:
        return shape not in KEYS_OF or key.partition(".")[2] in KEYS_OF[shape][0]

    found, unowned = _with_own_keys(given, given.get("tree", []), TREE[1:], has)
    for key in unowned:
        raise UserError(f"{given[key][0]}: no tree here has this option; give tree=SHAPE, or a list of shapes, too")
    return found


def _with_own_keys(
    given: Lists, choices: Sequence[str], keys: Sequence[str], has: Callable[[str, str], bool]
) -> tuple[list[Overrides], list[str]]:
    """Each of `choices` (group=name) with each value of those `keys` that it has, and the given keys that none has."""
    found: list[Overrides] = []
    unowned = [key for key in keys if key in given]
    for choice in choices:
        own = [key for key in keys if key in given and has(choice.partition("=")[2], key)]
        unowned = [key for key in unowned if key not in own]
        found += [[choice, *values] for values in product(*(given[key] for key in own))]
    return found, unowned


def as_text(value: Any) -> str:
    """`value` as Hydra reads it back."""
    text = "null" if value is None else str(value)
    if re.fullmatch(r"[\w./+-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
