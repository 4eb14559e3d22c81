"""One job: a composed config to a record and a line or a table on the screen, whichever process it runs in."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from omegaconf import DictConfig

from specbench.cli import fail, sweep_log, unexpected
from specbench.cli.hydra_app import task_overrides, to_schema
from specbench.cli.results import print_records
from specbench.config.checks import check
from specbench.config.schema import RunConfig
from specbench.errors import MachineError, UserError, error_line
from specbench.tasks.task import check_own_rows

if TYPE_CHECKING:
    from specbench.experiment.runner import Result
    from specbench.loading.model_loader import SharedModels

_sharing = False  # whether the jobs of this process hand their models on
_models: "SharedModels | None" = None


def job(composed: DictConfig, form: str = "table") -> None:
    """One run of a composed config, shown in `form`. Importable by name, so that launchers in other processes find it.

    Errors are printed and noted here, so that in a sweep a failing job fails alone. Only Ctrl-C stops them all.
    """
    keys = task_overrides()
    try:
        config = to_schema(composed, RunConfig)
        check(config)
        result = decode(config)
        if result is not None:
            show(result, form)
    except (UserError, MachineError) as error:
        sweep_log.add({"code": fail(str(error), error.exit_code), "error": error_line(error), "keys": keys})
    except BrokenPipeError:  # the reader is gone: not an error of the job
        raise
    except Exception as error:
        if sweep_log.in_sweep():  # the last lines of the sweep name it, and its record says where it came from
            fail(f"{error_line(error)} (not expected)", 1)
        else:
            unexpected(error)
        trace = "".join(traceback.format_exception(error))
        sweep_log.add({"code": 1, "error": f"{error_line(error)} (not expected)", "traceback": trace, "keys": keys})
    else:
        if result is not None:
            record, file = result.record, str(result.file.resolve())
            sweep_log.add(
                {"code": 0, "run_id": record["run_id"], "record": file, "reused": result.reused, "keys": keys}
            )


@contextmanager
def shared_models() -> Iterator[None]:
    """Within this, the jobs of this process hand their models on; after it, the memory is free."""
    global _sharing, _models
    _sharing = True
    try:
        yield
    finally:
        if _models is not None:
            _models.close()
        _sharing, _models = False, None


def decode(config: RunConfig, stream: IO[str] | None = None) -> "Result | None":
    """Run a checked config, with its progress on `stream` (stderr by default).

    Returns:
        The result; None in a process that only lends its device.

    Raises:
        UserError, MachineError: as `runs.execute`.
    """
    check_own_rows(config.task, config.limit, later_turns=config.batch == 1)
    from specbench.cli.console import Screen  # torch is imported only from here on
    from specbench.experiment.runner import execute, follow
    from specbench.loading.devices import rank
    from specbench.loading.model_loader import SharedModels

    global _models
    if _sharing and _models is None:
        _models = SharedModels()
    if rank() > 0:
        with open(os.devnull, "w") as nowhere, Screen(nowhere) as silent:
            follow(config, silent, _models)
        return None
    with Screen(stream or sys.stderr) as screen:
        return execute(config, screen, _models)


def show(result: "Result", form: str) -> None:
    """A finished run: a line in a sweep, whose table follows; else its numbers in `form`."""
    from specbench.cli.console import Screen

    screen = Screen(sys.stderr)
    if sweep_log.in_sweep():
        screen.line(result, sweep_log.place())
    else:
        row = {"run_id": result.record["run_id"], **result.record["summary"]}
        print_records(form, [row], lambda: screen.show(result))
