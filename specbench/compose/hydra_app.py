"""Compose a config from `conf/` and key=value words, at the command line and without one, and hand it to a function.

Hydra's own switches (`--cfg job`, `--config-dir`, `--multirun`, `hydra/launcher=`) go to Hydra untouched. Its errors,
which run over many lines and end in exit code 1, become one line that names the key, the value and the choices.
"""

import contextlib
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import hydra
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from specbench.compose.unnamed import conf_of_hydra, guard_files, store_unnamed
from specbench.compose.words import GROUPS, by_models, check_overrides, no_such_choice, no_such_key, parsed
from specbench.config.drafts import keys_of_kind, of_kind
from specbench.config.paths import conf_dir
from specbench.config.schema import RunConfig
from specbench.errors import UserError, first_line


class Composed(Protocol):
    """The dataclass of the keys of a verb."""

    conf_file: ClassVar[str]  # the file of `conf/` that composes it


T = TypeVar("T", bound=Composed)
R = TypeVar("R")

# Where a sweep may run, and which extra of ours brings it.
LAUNCHERS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}


@dataclass(frozen=True)
class Job(Generic[T]):
    """One job: its overrides (key=value each, one value of each list of a sweep), and its config or why it has none."""

    overrides: list[str]
    config: T | None
    error: str = ""

    def required(self) -> T:
        """The config. Raises UserError if there is none."""
        if self.config is None:
            raise UserError(self.error)
        return self.config


@dataclass(frozen=True)
class _TaskOfHydra(Generic[T]):
    """A task as Hydra calls it. An object and no closure, so that launchers can pickle it for other processes."""

    task: Callable[[Job[T]], None]
    schema: type[T]

    def __call__(self, composed: DictConfig) -> None:
        try:
            job = Job(task_overrides(), to_schema(composed, self.schema))
        except (UserError, HydraException, OmegaConfBaseException) as error:
            job = Job(task_overrides(), None, one_line(error, self.schema))
        self.task(job)


def launch(task: Callable[[Job[T]], None], schema: type[T], argv: list[str], verb: str) -> None:
    """Call `task` with the job that `argv` asks for, in a sweep with each of them, wherever Hydra's launcher runs it.

    A task handles its own errors: Hydra adds lines of its own to errors that reach it. Raises UserError if the
    overrides in `argv` do not compose.
    """
    launch_composed(_TaskOfHydra(task, schema), schema, argv, verb)


def launch_one(task: Callable[[T], R], schema: type[T], argv: list[str], verb: str) -> R | None:
    """Call `task` with the config that `argv` asks for, in this process; what it raises is raised.

    Returns:
        What `task` returns; None where a switch of Hydra shows the config instead.

    Raises:
        UserError: as `launch`.
    """
    returned: list[R] = []

    def one(composed: DictConfig) -> None:
        returned.append(task(to_schema(composed, schema)))

    launch_composed(one, schema, argv, verb, raises=True)
    return returned[0] if returned else None


def launch_composed(
    task: Callable[[DictConfig], None], schema: type[Composed], argv: list[str], verb: str, raises: bool = False
) -> None:
    """Compose the file of `conf/` that the dataclass `schema` names, typed by it, and call `task` with it, once a job.

    `raises`: an error of the task, which runs in this process, is raised when Hydra is done. Raises UserError as
    `launch`.
    """
    _prepare(schema, argv, verb, sweeps="--multirun" in argv)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us as they are, and not as text on the screen
    failed: list[Exception] = []

    def kept(composed: DictConfig) -> None:
        try:
            task(composed)
        except Exception as error:
            failed.append(error)

    saved, sys.argv = sys.argv, [f"specbench {verb}", *argv]
    try:
        with _errors_in_one_line(schema, argv):
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=schema.conf_file)(
                kept if raises else task
            )()
    finally:
        sys.argv = saved
    if failed:
        raise failed[0]


@contextlib.contextmanager
def composing(schema: type[Composed], words: Sequence[str], verb: str) -> Iterator[None]:
    """A context in which `hydra.compose` composes configs of `schema` without a command line.

    Hydra writes no log and no folder. `words` are the overrides. Raises UserError as `launch`.
    """
    _prepare(schema, words, verb, sweeps=False)
    with _errors_in_one_line(schema, words), conf_of_hydra():
        yield


def _prepare(schema: type[Composed], words: Sequence[str], verb: str, sweeps: bool) -> None:
    """Check the overrides `words`, and give Hydra the schema and the choices that it has no file of."""
    check_overrides(words, schema, verb, sweeps)
    guard_files()
    store_unnamed(words)
    store_schema(schema)


def store_schema(schema: type[Composed]) -> None:
    """Let the file of `conf/` that `schema` names take its types from `schema`."""
    ConfigStore.instance().store(name=f"{schema.conf_file}_schema", node=schema)


@contextlib.contextmanager
def _errors_in_one_line(schema: Any, words: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error, schema)) from error
    except ValueError as error:
        if "Config group override must be" not in str(error):
            raise
        raise UserError(_no_name(words)) from error


class _Enough(BaseException):
    """Ends a sweep that is only listed."""


def jobs_of(overrides: Sequence[str], switches: Sequence[str] = (), most: int | None = None) -> list[Job[RunConfig]]:
    """The jobs of a sweep (the first `most`), as Hydra orders and composes them; none is run.

    `switches` are Hydra's own, of which only `--config-dir` changes the jobs.
    """
    jobs: list[Job[RunConfig]] = []

    def collect(job: Job[RunConfig]) -> None:
        jobs.append(job)
        if len(jobs) == most:
            raise _Enough

    elsewhere = ("hydra/launcher=", "hydra.launcher.", "hydra.sweep.dir=")
    here = [word for word in overrides if not word.startswith(elsewhere)]
    folders = [*itertools.chain(*(pair for pair in itertools.pairwise(switches) if pair[0] == "--config-dir"))]
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_Enough):
        argv = ["--multirun", *folders, "hydra/launcher=basic", f"hydra.sweep.dir='{folder}'", *here]
        if most is not None and not any(word.startswith("hydra/sweeper=") for word in here):
            argv.append("hydra.sweeper.max_batch_size=1")  # Hydra composes a whole batch before its first job
        launch(collect, RunConfig, argv, "sweep")
    return jobs


def task_overrides() -> list[str]:
    """The overrides of the running job: key=value each, one value of each list of a sweep."""
    return list(HydraConfig.get().overrides.task)


def composed_config(schema: type[T], words: Sequence[str], verb: str) -> T:
    """The config that the overrides `words` ask for, without a command line. Raises UserError as `launch`."""
    with composing(schema, words, verb):
        return to_schema(hydra.compose(schema.conf_file, overrides=list(words)), schema, words)


def plain_config(overrides: Sequence[str], config_name: str | None = None) -> dict[str, Any]:
    """What `overrides` compose to as plain dictionaries, with keys and groups that they add (`+group@key=NAME`)."""
    store_schema(RunConfig)
    with conf_of_hydra():
        content: Any = OmegaConf.to_container(hydra.compose(config_name, overrides=list(overrides)))
    return content if isinstance(content, dict) else {}


def to_schema(
    composed: DictConfig, schema: type[T], overrides: Sequence[str] | None = None, listed: Sequence[DictConfig] = ()
) -> T:
    """The composed config as an instance of `schema`.

    Args:
        composed: the config.
        schema: its dataclass.
        overrides: the overrides that it was composed under; default: those of the running job.
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

    That is its name where another model takes its place, and its smaller head (`top_tokens`) there and where the draft
    learns or has random weights, which need all tokens. What the user picked or set stays.
    """
    given = _given(overrides)
    for model in {key.rpartition(".")[0] for key in given}:
        node = OmegaConf.select(composed, model) if model else None
        if not isinstance(node, DictConfig) or "note" not in node or given & {model, f"draft@{model}"}:
            continue
        replaced = bool(given & {f"{model}.path", f"{model}.hub"})
        if replaced and f"{model}.name" not in given:
            node.name = node.note = None
        whole = replaced or node.get("online") or node.get("weights") == "random"
        if whole and "top_tokens" in node and f"{model}.top_tokens" not in given:
            node.top_tokens = None


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
        return f"{key}={value}: {_in_words(reason.splitlines()[0])}"
    if found := re.search(r"Error parsing override '([^']*)'", text):
        return f"{found.group(1)}: cannot be read; write key=value"
    if found := re.search(r"Error merging override (([^=]*)=(.*))\n(?:Invalid value assigned: )?(.*)", text):
        override, key, value, reason = found.groups()
        reason = f"must be a list, '{key}=[{value}]'" if "not a ListConfig" in reason else reason
        return f"{override}: {reason}"
    return first_line(error)


# What OmegaConf says of a value of the wrong type, and what we say.
TYPES = {
    "Union[int, str]": "must be a whole number, or one of the words that --help lists",
    "Integer": "must be a whole number",
    "Float": "must be a number", "valid bool": "must be true or false",
}  # fmt: skip


def _in_words(reason: str) -> str:
    return next((said for kind, said in TYPES.items() if kind in reason), reason)


def _no_name(argv: Sequence[str]) -> str:
    """Hydra does not say which group was given a number, or another thing that is no name."""
    words = [word for word in argv if word.partition("=")[0].partition("@")[0] in GROUPS]
    word = next((word for word in words if (given := parsed(word)) and not isinstance(given.value(), str)), words[0])
    group = word.partition("=")[0].partition("@")[0]
    return f"{word}: is picked by its name; 'specbench list {group}' shows them"


def _added(config: DictConfig, before: str = "") -> Iterator[str]:
    """Keys that the types of `config` do not have."""
    schema: Any = OmegaConf.get_type(config)
    for name in config:
        child = config._get_node(name)
        if name not in {one.name for one in fields(schema)}:
            yield f"{before}{name!s}"
        elif isinstance(child, DictConfig) and not child._is_none() and OmegaConf.get_type(child) is not dict:
            yield from _added(child, f"{before}{name!s}.")


# The jobs of a sweep that run in this process: ordered so that each model is loaded once, and kept between jobs.
#
# Hydra's basic launcher takes jobs as the sweep's lists multiply out, the last list varying fastest. Other launchers
# (joblib, SLURM, Ray) run jobs in processes of their own and are not changed.


@dataclass(frozen=True)
class Around:
    """What happens around the jobs of a sweep.

    Attributes:
        count: receives the number of jobs, whichever launcher runs them.
        announce: receives the jobs, the folder of results and the name of the experiment ('' without one) before the
            first of several jobs of this process.
        sharing: a context in which the jobs of this process run.
    """

    count: Callable[[int], None]
    announce: Callable[[list[Job[RunConfig]], str, str], None]
    sharing: Callable[[], AbstractContextManager[None]]


class OrderedLauncher(BasicLauncher):
    """The basic launcher with jobs that need the same models next to each other."""

    around: ClassVar[Around]

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        jobs = by_models(job_overrides)
        if len(jobs) > 1:
            assert self.config is not None
            experiment = self.config.hydra.runtime.choices.get("experiment") or ""
            self.around.announce([self._composed(job) for job in jobs], self.config.results, experiment)
        with self.around.sharing():
            returned: Sequence[JobReturn] = super().launch(jobs, initial_job_idx)
        return returned

    def _composed(self, overrides: Sequence[str]) -> Job[RunConfig]:
        assert self.hydra_context is not None and self.config is not None
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(composed):
            del composed["hydra"]
        try:
            return Job(list(overrides), to_schema(composed, RunConfig, overrides))
        except UserError as error:  # the job itself will say so
            return Job(list(overrides), None, str(error))


@contextmanager
def ordered_launcher(around: Around) -> Iterator[None]:
    """A context in which Hydra's basic launcher is replaced by ours, and its basic sweeper counts the jobs.

    Hydra (1.3) finds plugins of other packages only where they are installed as `hydra_plugins`, so the entry of its
    registry is exchanged. The sweeper's class is changed in place: Hydra imports it anew, so that ours would derive
    from another class of that name.
    """
    registry: dict[str, Any] = Plugins.instance().class_name_to_class
    launcher, sweeper = (f"{plugin.__module__}.{plugin.__qualname__}" for plugin in (BasicLauncher, BasicSweeper))
    split = registry[sweeper].split_arguments

    def counted(*given: Any) -> list[list[list[str]]]:
        batches: list[list[list[str]]] = split(*given)
        around.count(sum(map(len, batches)))
        return batches

    OrderedLauncher.around = around
    registry[launcher], registry[sweeper].split_arguments = OrderedLauncher, staticmethod(counted)
    try:
        yield
    finally:
        registry[launcher], registry[sweeper].split_arguments = BasicLauncher, staticmethod(split)
