"""The common parts of `specbench bench` and `specbench bench beam`: launch, folder of the record, parts of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.compose.hydra_app import launch_one
from specbench.config.schema import RunConfig
from specbench.escaping import printable
from specbench.files import require_writable
from specbench.tasks.task import check_own_rows

if TYPE_CHECKING:
    from specbench.experiment.build import Parts

T = TypeVar("T")


class Prepared(NamedTuple):
    """The resolved config of a verb and its loaded parts."""

    folder: Path  # where the record goes
    run: RunConfig  # resolved for this machine
    parts: Parts


def launch_verb(
    argv: list[str], verb: str, about: str, schema: type[T], job: Callable[[str, T], None], config_name: str = ""
) -> int:
    """Show the help of `verb`, or call `job` with the format of its output and its config; returns the exit code.

    `config_name` is the file of `conf/` that composes the config; unset: that of the verb's name.
    """
    if "--help" in argv or "-h" in argv:
        print(usage(verb, about, schema))
        return 0
    command = read(argv, schema)

    launch_one(partial(job, command.form), config_name or verb, schema, command.argv, verb)
    return 0


def prepared(config: RunConfig, verb: str) -> Prepared:
    """The parts of a checked config, loaded, for a record in the folder `verb` of its results.

    Raises UserError if the folder cannot be written or the config does not fit its models, MachineError if memory does
    not suffice. Imports torch.
    """
    folder = Path(config.results) / verb
    require_writable(folder)
    check_own_rows(config.task, config.limit, later_turns=False)
    from specbench.experiment.build import build, resolve
    from specbench.experiment.runner import translated_errors

    run = resolve(config, say)
    with translated_errors(run):
        return Prepared(folder, run, build(run, say))


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    print(printable(text), file=sys.stderr)
