"""`specbench sweep`: many jobs, wherever Hydra's launchers run them, and what became of each."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from specbench.cli import sweep_log
from specbench.cli.overrides import CommandLine
from specbench.cli.planned_jobs import outline, plan, show_plan
from specbench.cli.results import print_records
from specbench.cli.shared_models import shared_models
from specbench.compose.hydra_app import Job, jobs_of, launch
from specbench.compose.ordered_jobs import Around, ordered_launcher
from specbench.compose.words import value_of
from specbench.config.checks import check
from specbench.config.schema import RunConfig
from specbench.errors import MachineError, UserError, error_line
from specbench.files import again, note_finished, require_writable
from specbench.nouns import with_noun
from specbench.records import store

BASIC = "basic"
LOSING_LAUNCHERS = ("joblib", "submitit", "ray")  # packages whose errors say that a worker was lost


def sweep(command: CommandLine, job: Callable[[Job[RunConfig]], None]) -> int:
    """Launch all jobs, each by `job`, and print what became of each even if the sweep is cut short.

    Returns:
        The most serious exit code of all jobs.

    Raises:
        UserError: the sweep as a whole cannot be composed.
        MachineError: a launcher lost its workers, or the results folder cannot be written.
    """
    if "--cfg" in command.switches or "--info" in command.switches:
        return _show_first(command, job)
    if "dry-run" in command.options:
        return show_plan(command)
    results = value_of(command.overrides, "results", "results")
    require_writable(results)
    launcher = value_of(command.overrides, "hydra/launcher", BASIC)
    if launcher != BASIC:  # ours announces its jobs itself
        require_possible(jobs_of(command.overrides, command.switches))
    file = sweep_log.new_file(results)
    sweep_log.begin()
    # Before the user's own keys, which are the last word.
    argv = [*_multirun(command), *sweep_log.overrides(file), *command.overrides]
    try:
        # Our own launcher's jobs print a line each in this process.
        watched = contextlib.nullcontext() if launcher == BASIC else sweep_log.watching(file, sys.stderr)
        with ordered_launcher(Around(sweep_log.expect, _announce, shared_models)), watched:
            launch(job, RunConfig, argv, "sweep")
    except UserError:
        raise  # of the sweep as a whole, before the first job
    except BaseException as error:
        _tell(ended := sweep_log.all_of(file), file, command.form, all_launched=False)
        if ended:
            note_finished()
        if type(error).__module__.partition(".")[0] not in LOSING_LAUNCHERS:
            raise
        raise MachineError(
            f"hydra/launcher={value_of(command.overrides, 'hydra/launcher', 'basic')}: {error_line(error)}{again()}"
        ) from error
    ended = sweep_log.all_of(file)
    _tell(ended, file, command.form, all_launched=True)
    return max((outcome["code"] for outcome in ended), default=0)


def _announce(jobs: list[Job[RunConfig]], results: str, experiment: str) -> None:
    """Say how many jobs there are, and the memory and time that they need, once all values are known to be possible."""
    require_possible(jobs)
    for line in outline(plan(jobs, results), experiment):
        print(line, file=sys.stderr)


def require_possible(jobs: Sequence[Job[RunConfig]]) -> None:
    """Check every value of a sweep before its first job.

    A value that is possible in some jobs is no mistake: only the other jobs fail. Raises UserError if no job can have
    it.
    """
    errors: dict[str, str] = {}
    possible = set[str]()
    for one in jobs:
        try:
            check(one.required())
        except UserError as error:
            errors |= {word: str(error) for word in one.overrides if word not in errors}
        else:
            possible.update(one.overrides)
    bad = next((word for word in errors if word not in possible), None)
    if bad is not None:
        raise UserError(f"{errors[bad]} (of this sweep no job has run)")


def _multirun(command: CommandLine) -> list[str]:
    return ["--multirun", *(switch for switch in command.switches if switch != "--multirun")]


def _show_first(command: CommandLine, job: Callable[[Job[RunConfig]], None]) -> int:
    """`--cfg job`: the config of the first job, since Hydra shows one config and a sweep has many."""
    switches = [switch for switch in command.switches if switch != "--multirun"]
    (first,) = jobs_of(command.overrides, command.switches, most=1)
    launch(job, RunConfig, [*switches, *first.overrides], "run")
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
    runs = f"{len(done)} of {with_noun(len(ended), 'run')}" if all_launched else with_noun(len(done), "run")
    print(
        f"{runs} done{f', {before} of them before' if before else ''}; 'specbench results' shows all records",
        file=sys.stderr,
    )
    shared = set.intersection(*(set(outcome["keys"]) for outcome in ended))
    for outcome in ended:
        if outcome["code"]:
            swept = " ".join(key for key in outcome["keys"] if key not in shared)
            print(f"failed: {outcome['error']}{swept and f' ({swept})'}", file=sys.stderr)
    if len(done) < len(ended):
        print(f"outcome of each job: {file}", file=sys.stderr)
