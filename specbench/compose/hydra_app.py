"""Compose a config from `conf/` and key=value words, at the command line and without one, and hand it to a function.

Hydra's own switches (`--cfg job`, `--config-dir`, `--multirun`, `hydra/launcher=`) go to Hydra untouched. Its errors,
which run over many lines and end in exit code 1, become one line that names the key, the value and the choices.
"""

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.compose.hydra_errors import one_line
from specbench.compose.to_schema import Composed, T, task_overrides, to_schema
from specbench.compose.unnamed import conf_of_hydra, guard_files, store_unnamed
from specbench.compose.words import GROUPS, check_overrides, check_used, parsed
from specbench.config.paths import conf_dir
from specbench.config.schema import RunConfig
from specbench.errors import UserError

R = TypeVar("R")


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
    overrides in `argv` do not compose, or the verb does not use one of them.
    """
    check_used(argv, schema, verb)
    launch_composed(_TaskOfHydra(task, schema), schema, argv, verb)


def launch_one(task: Callable[[T], R], schema: type[T], argv: list[str], verb: str) -> R | None:
    """Call `task` with the config that `argv` asks for, in this process; what it raises is raised.

    Returns:
        What `task` returns; None if a switch of Hydra shows the config instead.

    Raises:
        UserError: as `launch`.
    """
    returned: list[R] = []

    def one(composed: DictConfig) -> None:
        returned.append(task(to_schema(composed, schema)))

    check_used(argv, schema, verb)
    launch_composed(one, schema, argv, verb, raises=True)
    return returned[0] if returned else None


def launch_composed(
    task: Callable[[DictConfig], None], schema: type[Composed], argv: list[str], verb: str, raises: bool = False
) -> None:
    """Compose the file of `conf/` that the dataclass `schema` names, typed by it, and call `task` with it for each job.

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

    hydras = HydraConfig.instance()
    before = hydras.cfg
    saved, sys.argv = sys.argv, [f"specbench {verb}", *argv]
    try:
        with _errors_in_one_line(schema, argv):
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=schema.conf_file)(
                kept if raises else task
            )()
    finally:
        sys.argv, hydras.cfg = saved, before  # Hydra leaves its own after --cfg and --info
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


def composed_config(schema: type[T], words: Sequence[str], verb: str) -> T:
    """The config that the overrides `words` ask for, without a command line. Raises UserError as `launch`."""
    check_used(words, schema, verb)
    with composing(schema, words, verb):
        return to_schema(hydra.compose(schema.conf_file, overrides=list(words)), schema, words)


def plain_config(overrides: Sequence[str], config_name: str | None = None) -> dict[str, Any]:
    """The config of `overrides` as plain dictionaries, with keys and groups that they add (`+group@key=NAME`)."""
    store_schema(RunConfig)
    with conf_of_hydra():
        content: Any = OmegaConf.to_container(hydra.compose(config_name, overrides=list(overrides)))
    return content if isinstance(content, dict) else {}


def _no_name(argv: Sequence[str]) -> str:
    """Hydra does not say which group was given a number, or another thing that is no name."""
    words = [word for word in argv if word.partition("=")[0].partition("@")[0] in GROUPS]
    word = next((word for word in words if (given := parsed(word)) and not isinstance(given.value(), str)), words[0])
    group = word.partition("=")[0].partition("@")[0]
    return f"{word}: is picked by its name; 'specbench list {group}' shows them"
