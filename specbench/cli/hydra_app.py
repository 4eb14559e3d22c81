"""Hydra at the command line: compose a config from `conf/` and argv, check it, hand it to a function.

Hydra's own switches (`--cfg job`, `--config-dir`, `--multirun`, `hydra/launcher=`) go to Hydra untouched. Its errors,
which run over many lines and end in exit code 1, become one line that names the key, the value and the choices.
"""

import difflib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.config import conf_dir
from specbench.errors import UserError, first_line

T = TypeVar("T")

# Where a sweep may run, and which extra of ours brings it.
LAUNCHERS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}


def launch(task: Callable[[DictConfig], None], config_name: str, schema: Any, argv: list[str], verb: str) -> None:
    """Compose `conf/<config_name>.yaml`, typed by the dataclass `schema`, under the overrides in `argv`, and call
    `task` with it (once a job in a sweep). Raises UserError where it cannot be composed.

    `task` should deal with its own errors: Hydra adds lines of its own to those that reach it.
    """
    ConfigStore.instance().store(name=f"{config_name}_schema", node=schema)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us as they are, and not as text on the screen
    saved, sys.argv = sys.argv, [f"specbench {verb}", *argv]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(task)()
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error, schema)) from error
    except ValueError as error:
        if "Config group override must be" not in str(error):
            raise
        raise UserError(_no_name(argv)) from error
    finally:
        sys.argv = saved


def launch_one(task: Callable[[DictConfig], None], config_name: str, schema: Any, argv: list[str], verb: str) -> None:
    """`launch` for a task that runs in this process and raises what goes wrong: so does this, when Hydra is done."""
    failed: list[Exception] = []

    @functools.wraps(task)
    def kept(composed: DictConfig) -> None:
        try:
            task(composed)
        except Exception as error:
            failed.append(error)

    launch(kept, config_name, schema, argv, verb)
    if failed:
        raise failed[0]


def task_overrides() -> list[str]:
    """What the job that is running was told: key=value each, one value of each list of a sweep."""
    return list(HydraConfig.get().overrides.task)


def to_schema(composed: DictConfig, schema: type[T], overrides: Sequence[str] | None = None) -> T:
    """The composed config as an instance of `schema`; `overrides` are those it was composed under (default: those of
    the running job). `+key=value` can add keys that mean nothing: refused here."""
    for name in _added(composed):
        raise UserError(_unknown_key(name, schema))
    if overrides is None:
        overrides = task_overrides() if HydraConfig.initialized() else ()
    _unname(composed, overrides)
    built = OmegaConf.to_object(composed)
    assert isinstance(built, schema)
    return built


def _unname(composed: DictConfig, overrides: Sequence[str]) -> None:
    """A folder in the place of the default choice does not have its name; in that of the user's own choice it has."""
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    for model in ("target", "draft"):
        if model in composed and f"{model}.path" in given and not given & {model, f"{model}.name"}:
            composed[model].name = composed[model].note = None


def one_line(error: BaseException, schema: Any) -> str:
    """What a Hydra or OmegaConf error comes to, for a user."""
    text = f"{error}\n{error.__cause__ or ''}"
    if found := re.search(r"Could not find '([\w/-]+)/([^'/]*)'.*?Available options in '[^']*':\n(.*)", text, re.S):
        group, value, rest = found.groups()
        listed = rest.partition("Config search path")[0]
        if group == "hydra/launcher" and value in LAUNCHERS:
            return f"{group}={value}: is not installed; pip install 'specbench-toolkit[{LAUNCHERS[value]}]'"
        choices = [line.strip() for line in listed.splitlines() if line.startswith("\t")]
        return f"{group}={value}: no such {group}; choose from {', '.join(choices)}"
    if found := re.search(r"Could not override '([^']*)'", text):
        return _unknown_key(found.group(1), schema)
    if found := re.search(r"Key '([^']*)' (?:is )?not in .*?full_key: (\S+)", text, re.S):
        return _unknown_key(found.group(2), schema)
    if found := re.search(r"Value '(.*?)' (.*?)\n\s*full_key: (\S+)", text, re.S):
        value, reason, key = found.groups()
        return f"{key}={value}: {reason.splitlines()[0]}"
    if found := re.search(r"Error parsing override '([^']*)'", text):
        return f"{found.group(1)}: cannot be read; write key=value"
    if found := re.search(r"Error merging override (([^=]*)=(.*))\n(?:Invalid value assigned: )?(.*)", text):
        override, key, value, reason = found.groups()
        reason = f"must be a list, '{key}=[{value}]'" if "not a ListConfig" in reason else reason
        return f"{override}: {reason}"
    return first_line(error)


def _no_name(argv: list[str]) -> str:
    """Hydra does not say which group was given a number, or another thing that is no name."""
    groups = [file.name for file in conf_dir().iterdir() if file.is_dir()]
    words = [word for word in argv if word.partition("=")[0] in groups]
    parser = OverridesParser.create()
    word = next(word for word in words if not isinstance(parser.parse_override(word).value(), str))
    return f"{word}: is picked by its name; 'specbench list' shows what there is"


def _unknown_key(key: str, schema: Any) -> str:
    known = _keys(OmegaConf.structured(schema))
    close = difflib.get_close_matches(key, known, n=3)
    if close:
        return f"{key}: no such key; did you mean {' or '.join(close)}?"
    top = sorted({name.partition(".")[0] for name in known})
    return f"{key}: no such key; the keys are {', '.join(top)} ('specbench run --cfg job' shows all)"


def _added(config: DictConfig, before: str = "") -> Iterator[str]:
    """Keys that the types of `config` do not have."""
    schema: Any = OmegaConf.get_type(config)
    for name in config:
        child = config._get_node(name)
        if name not in {one.name for one in fields(schema)}:
            yield f"{before}{name!s}"
        elif isinstance(child, DictConfig) and not child._is_none() and OmegaConf.get_type(child) is not dict:
            yield from _added(child, f"{before}{name!s}.")


def _keys(config: DictConfig, before: str = "") -> list[str]:
    names = []
    for name in config:
        child = config._get_node(name)
        names.append(f"{before}{name!s}")
        if isinstance(child, DictConfig) and not child._is_none() and OmegaConf.get_type(child) is not dict:
            names += _keys(child, f"{before}{name!s}.")
    return names
