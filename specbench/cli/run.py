"""`specbench run`: one job, from a composed config to a record and a line or a table on the screen."""

import sys
import traceback
from functools import partial

from specbench import api
from specbench.cli import fail, sweep_log, unexpected
from specbench.cli.dry_run import DRY_RUN
from specbench.cli.overrides import read
from specbench.cli.planned_jobs import show_needs
from specbench.cli.results import print_records
from specbench.cli.shared_models import loader_of_process
from specbench.cli.sweeping import sweep
from specbench.cli.usage import usage
from specbench.compose.grid import runs_left_out
from specbench.compose.hydra_app import Job, launch
from specbench.compose.words import GROUPS
from specbench.config.schema import RunConfig
from specbench.errors import MachineError, UserError, error_line
from specbench.records.store import Result

ABOUT = """
Decode the prompts of a task with the target alone and with the target and a draft, side by side; measure alpha, c and
the speedup; write a record to results/runs/ and show it as a table.
"""
SWEEP = """
A sweep runs each combination of values, given with commas: specbench sweep gamma=1,3,5,7 draft=unigram,bigram
"""
PICKED = tuple(group for group in GROUPS if group != "recipe")
LAUNCHERS = {
    "hydra/launcher=NAME": "where a sweep runs: joblib | submitit_local | submitit_slurm | ray (docs/sweeps.md)"
}


def main_sweep(argv: list[str]) -> int:
    """Run `specbench sweep` with the words `argv`."""
    return main(argv, "sweep")


def main(argv: list[str], verb: str = "run") -> int:
    """Run `specbench run` or `specbench sweep` (`verb`) with the words `argv`."""
    about, options = (ABOUT + SWEEP, LAUNCHERS) if verb == "sweep" else (ABOUT, DRY_RUN)
    command = read(
        argv,
        RunConfig,
        lambda: usage(verb, about, RunConfig, groups=PICKED, options=options, words=argv),
        alone=("dry-run",),
    )
    if verb == "sweep" or "--multirun" in command.switches or _several_contexts(command.overrides):
        return sweep(command, job)
    if "dry-run" in command.options:
        return show_needs(command)
    if not command.switches and (line := runs_left_out(command.overrides, RunConfig)) is not None:
        print(line, file=sys.stderr)
    sweep_log.begin()
    launch(partial(job, form=command.form), RunConfig, command.argv, verb)
    return max((outcome["code"] for outcome in sweep_log.all_of(None)), default=0)


def _several_contexts(overrides: list[str]) -> bool:
    """Whether `context=1k,4k` asks for a run at each."""
    return any(word.startswith("context=") and "," in word for word in overrides)


def job(asked: Job[RunConfig], form: str = "table") -> None:
    """One run of a composed config, shown in `form`. Importable by name, so that launchers in other processes find it.

    Errors are printed and noted here, so that in a sweep only the failing job fails. Only Ctrl-C stops them all.
    """
    keys = asked.overrides
    try:
        result = api.decode(asked.required(), loader=loader_of_process())
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
