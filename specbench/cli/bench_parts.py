"""The loaded parts of a benchmark, for `specbench bench` and `specbench bench beam`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specbench.cli.options import to_stderr
from specbench.config.schema import RunConfig
from specbench.files import require_writable
from specbench.tasks import check_own_rows

if TYPE_CHECKING:
    from specbench.experiment.run_parts import Parts


class Prepared(NamedTuple):
    """The resolved config of a verb and its loaded parts."""

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
    check_own_rows(config.task, config.limit, later_turns=False)
    from specbench.experiment.run_parts import build_each, resolve
    from specbench.experiment.runner import translated_errors

    run = resolve(config, to_stderr)
    with translated_errors(run):
        return Prepared(folder, run, build_each([run], to_stderr)[0])
