"""What `specbench bench` and `specbench beam` prepare alike: the folder of their record, and the parts of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specbench.config import RunConfig
from specbench.files import require_writable

if TYPE_CHECKING:
    from specbench.run.build import Parts


class Prepared(NamedTuple):
    folder: Path  # where the record goes
    run: RunConfig  # resolved for this machine
    parts: Parts


def prepared(config: RunConfig, verb: str) -> Prepared:
    """The parts of a checked config, loaded, for a record in the folder `verb` of its results.

    Raises UserError if the folder cannot be written or the config does not fit its models, MachineError if memory does
    not suffice. Imports torch.
    """
    folder = Path(config.results) / verb
    require_writable(folder)
    from specbench.run.build import build, resolve
    from specbench.run.error_translation import translated_errors

    run = resolve(config)
    with translated_errors(run):
        return Prepared(folder, run, build(run, say))


def say(text: str) -> None:
    """A line of progress on stderr."""
    print(text, file=sys.stderr)
