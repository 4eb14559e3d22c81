"""Composed configs as the dataclasses that type them, from the command line or from a record."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.compose.hydra_errors import one_line
from specbench.compose.suggestions import no_such_key
from specbench.config.draft_keys import keys_of_kind, of_kind
from specbench.config.schema import RunConfig
from specbench.errors import UserError


class Composed(Protocol):
    """The dataclass of the keys of a verb."""

    conf_file: ClassVar[str]  # the file of `conf/` that composes it


T = TypeVar("T", bound=Composed)


def task_overrides() -> list[str]:
    """The overrides of the running job: key=value each, one value of each list of a sweep."""
    return list(HydraConfig.get().overrides.task)


def to_schema(
    composed: DictConfig, schema: type[T], overrides: Sequence[str] | None = None, listed: Sequence[DictConfig] = ()
) -> T:
    """The composed config as an instance of `schema`.

    Args:
        composed: the config.
        schema: its dataclass.
        overrides: the overrides that it was composed under; default: the running job's.
        listed: configs composed under the same overrides, whose kinds of draft may have other keys.

    Raises:
        UserError: a key that `+key=value` added has no meaning, or belongs to a kind of draft that is not given.
    """
    for name in _added(composed):
        raise UserError(no_such_key(name, schema))
    if overrides is None:
        overrides = task_overrides() if HydraConfig.initialized() else ()
    _unname(composed, overrides)
    built: Any = OmegaConf.to_object(composed)
    if "draft" in composed:
        beside = {f"draft.{name}" for one in listed for name in keys_of_kind(one.draft.kind)}
        built.draft = of_kind(built.draft, "draft", _given(overrides), beside)
    if "sampling" in composed:
        keys = (key.partition("sampling.") for key in _given(overrides))
        vars(built.sampling)["typed"] = frozenset(name for before, _, name in keys if name and not before)
    assert isinstance(built, schema)
    return built


def config_of_record(frozen: Mapping[str, Any]) -> RunConfig:
    """The config of a record, as it was run: nothing is interpolated.

    Raises UserError if it has another key that this version does not know.
    """
    keys = _as_written(frozen)
    try:
        built: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.create(keys)))
    except OmegaConfBaseException as error:
        raise UserError(f"the config of a record: {one_line(error, RunConfig)}") from error
    built.draft = of_kind(built.draft)
    assert isinstance(built, RunConfig)
    return built


ESCAPABLE = re.compile(r"(\\*)\$\{")  # the backslashes before it stand for half as many


def _as_written(value: Any) -> Any:
    """`value` as OmegaConf gives it back: '${oc.env:NAME}' of a record is text, and no variable of this machine."""
    if isinstance(value, Mapping):
        return {key: _as_written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_written(item) for item in value]
    return ESCAPABLE.sub(r"\1\1\\${", value) if isinstance(value, str) else value


def _given(overrides: Sequence[str]) -> set[str]:
    """The keys and groups that are set."""
    return {override.partition("=")[0].lstrip("+") for override in overrides}


def _unname(composed: DictConfig, overrides: Sequence[str]) -> None:
    """Clear what the user did not ask for of a default choice whose model, or its use, other keys replace.

    That is its name if another model takes its place, and its smaller head (`top_tokens`) there, if the draft
    learns or has random weights, which need all tokens, and if the user's own prompts come without the training text
    in which tokens are counted. What the user picked or set stays.
    """
    given = _given(overrides)
    task = composed.get("task")
    uncounted = isinstance(task, DictConfig) and task.get("path") is not None and task.get("train_path") is None
    for model in {key.rpartition(".")[0] for key in given} | ({"draft"} if uncounted else set()):
        node = OmegaConf.select(composed, model) if model else None
        if not isinstance(node, DictConfig) or "note" not in node or given & {model, f"draft@{model}"}:
            continue
        replaced = bool(given & {f"{model}.path", f"{model}.hub"})
        if replaced and f"{model}.name" not in given:
            node.name = node.note = None
        whole = replaced or uncounted or node.get("online") or node.get("weights") == "random"
        if whole and "top_tokens" in node and f"{model}.top_tokens" not in given:
            node.top_tokens = None


def _added(config: DictConfig, before: str = "") -> Iterator[str]:
    """Keys that the types of `config` do not have."""
    schema: Any = OmegaConf.get_type(config)
    for name in config:
        child = config._get_node(name)
        if name not in {one.name for one in fields(schema)}:
            yield f"{before}{name!s}"
        elif isinstance(child, DictConfig) and not child._is_none() and OmegaConf.get_type(child) is not dict:
            yield from _added(child, f"{before}{name!s}.")
