"""`specbench sweep`: many jobs, wherever Hydra's launchers run them, and one account of them at the end."""

import contextlib
import sys
from pathlib import Path

from specbench.cli import sweep_log
from specbench.cli.dry_run import outline, plan, show_plan
from specbench.cli.job import job, shared_models
from specbench.cli.overrides import CommandLine
from specbench.cli.results import print_records
from specbench.compose.hydra_app import Job, jobs_of, launch
from specbench.compose.launcher import Around, ordered_launcher
from specbench.compose.words import value_of
from specbench.config.schema import RunConfig
from specbench.errors import MachineError, UserError, error_line
from specbench.files import require_writable
from specbench.records import store

BASIC = "basic"
LAUNCHERS = ("joblib", "submitit", "ray")  # packages whose errors say that a worker was lost


def sweep(command: CommandLine) -> int:
    """Launch all jobs, and print what became of each even if the sweep is cut short.

    Returns:
        The most serious exit code of all jobs.

    Raises:
        UserError: the sweep as a whole cannot be composed.
        MachineError: a launcher lost its workers, or the results folder cannot be written.
    """
    if "--cfg" in command.switches or "--info" in command.switches:
        return _show_first(command)
    if "dry-run" in command.options:
        return show_plan(command)
    results = value_of(command.overrides, "results", "results")
    require_writable(results)
    file = sweep_log.new_file(results)
    sweep_log.begin()
    # Before the user's own keys, which are the last word.
    argv = [*_multirun(command), *sweep_log.overrides(file), *command.overrides]
    try:
        launcher = value_of(command.overrides, "hydra/launcher", BASIC)
        # Our own launcher's jobs print a line each in this process.
        watched = contextlib.nullcontext() if launcher == BASIC else sweep_log.watching(file, sys.stderr)
        with ordered_launcher(Around(sweep_log.expect, _announce, shared_models)), watched:
            launch(job, "run", RunConfig, argv, "sweep")
    except UserError:
        raise  # of the sweep as a whole, before the first job
    except BaseException as error:
        _tell(sweep_log.all_of(file), file, command.form, all_launched=False)
        if type(error).__module__.partition(".")[0] not in LAUNCHERS:
            raise
        raise MachineError(
            f"hydra/launcher={value_of(command.overrides, 'hydra/launcher', 'basic')}: {error_line(error)}; "
            "finished work is kept: run the same command again"
        ) from error
    ended = sweep_log.all_of(file)
    _tell(ended, file, command.form, all_launched=True)
    return max((outcome["code"] for outcome in ended), default=0)


def _announce(jobs: list[Job[RunConfig]], results: str, experiment: str) -> None:
    """Say how many jobs there are, and the memory and time that they need."""
    for line in outline(plan(jobs, results), experiment):
        print(line, file=sys.stderr)


def _multirun(command: CommandLine) -> list[str]:
    return ["--multirun", *(switch for switch in command.switches if switch != "--multirun")]


def _show_first(command: CommandLine) -> int:
    """`--cfg job`: the config of the first job, since Hydra shows one config and a sweep has many."""
    switches = [switch for switch in command.switches if switch != "--multirun"]
    (first,) = jobs_of("run", RunConfig, command.overrides, command.switches, most=1)
    launch(job, "run", RunConfig, [*switches, *first.overrides], "run")
    print("this is the first job of the sweep; --dry-run lists them all", file=sys.stderr)
    return 0


def _tell(ended: list[sweep_log.Outcome], file: Path, form: str, all_launched: bool) -> None:
    """All runs that are done as one table, and a line for each that failed."""
    if not ended:
        return
    done = [outcome for outcome in ended if not outcome["code"]]
    if done or form != "table":
        print_records(form, [store.read_head(Path(outcome["record"])).row for outcome in done])
    before = sum(outcome["reused"] for outcome in done)
    print(
        f"{len(done)}{f' of {len(ended)}' if all_launched else ''} runs done"
        f"{f', {before} of them before' if before else ''}; 'specbench results' shows all records",
        file=sys.stderr,
    )
    shared = set.intersection(*(set(outcome["keys"]) for outcome in ended))
    for outcome in ended:
        if outcome["code"]:
            swept = " ".join(key for key in outcome["keys"] if key not in shared)
            print(f"failed: {outcome['error']}{swept and f' ({swept})'}", file=sys.stderr)
    if len(done) < len(ended):
        print(f"what became of each job: {file}", file=sys.stderr)
