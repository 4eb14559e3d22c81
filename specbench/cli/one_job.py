"""One job: a composed config to a record and a line or a table on the screen, whichever process it runs in."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specbench import api
from specbench.cli import fail, sweep_log, unexpected
from specbench.cli.results import print_records
from specbench.compose.hydra_app import Job
from specbench.config.schema import RunConfig
from specbench.errors import MachineError, UserError, error_line
from specbench.records.store import Result

if TYPE_CHECKING:
    from specbench.loading.model_loader import SharedModels


_sharing = False  # whether the jobs of this process hand their models on
_models: "SharedModels | None" = None


def job(asked: Job[RunConfig], form: str = "table") -> None:
    """One run of a composed config, shown in `form`. Importable by name, so that launchers in other processes find it.

    Errors are printed and noted here, so that in a sweep only the failing job fails. Only Ctrl-C stops them all.
    """
    keys = asked.overrides
    try:
        result = api.decode(asked.required(), loader=_loader())
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


def _loader() -> "SharedModels | None":
    """The models that the jobs of this process share; None if they share none."""
    global _models
    if _sharing and _models is None:
        from specbench.loading.model_loader import SharedModels

        _models = SharedModels()
    return _models


def show(result: Result, form: str) -> None:
    """A finished run: a line in a sweep, whose table follows; otherwise its numbers in `form`."""
    from specbench.report.console import Screen

    screen = Screen(sys.stderr)
    if sweep_log.in_sweep():
        screen.line(result, sweep_log.place())
    elif form == "table":
        screen.show(result)
    else:
        print_records(form, [{"run_id": result.record["run_id"], **result.record["summary"]}])
