"""`specbench run`, one run, and `specbench sweep`, many, wherever Hydra's launchers run them."""

import contextlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specbench import api
from specbench.cli import fail, sweep_log, unexpected
from specbench.cli.dry_run import DRY_RUN
from specbench.cli.formats import aside, print_rows
from specbench.cli.overrides import CommandLine, read
from specbench.cli.results import print_records
from specbench.cli.usage import usage
from specbench.compose.grid import runs_left_out
from specbench.compose.hydra_app import Job, jobs_of, launch, launch_one
from specbench.compose.ordered_jobs import Around, ordered_launcher
from specbench.compose.words import GROUPS, by_models, value_of
from specbench.config.checks import check
from specbench.config.schema import RunConfig
from specbench.errors import MachineError, UserError, error_line
from specbench.files import again, note_finished, require_writable
from specbench.formatting import duration, size
from specbench.nouns import with_noun
from specbench.records import store
from specbench.records.run_record import Row
from specbench.records.served import SERVED
from specbench.records.store import Result
from specbench.report.console import plain_table, wide_console
from specbench.report.paper import times_of
from specbench.tasks import check_own_rows

if TYPE_CHECKING:
    from specbench.loading.model_loader import SharedModels


# The jobs of a sweep with the time and memory of each, as far as they are known.
#
# `specbench sweep --dry-run` lists them; a sweep prints their sum before it begins. Memory counts the weights in the
# run's dtype, without caches. Time is taken from the record of the most similar run on the same hardware: its seconds
# per prompt, times the prompts. Nothing is loaded.


@dataclass(frozen=True)
class Planned:
    """One job: the keys in which it differs, and its needs; None if they are not known."""

    keys: str
    run_id: str | None = None
    done: bool = False
    prompts: int | None = None
    weights_bytes: int | None = None
    seconds: float | None = None
    estimated_from: str | None = None  # the record whose times were used
    error: str | None = None


def show_plan(command: CommandLine) -> int:
    """List the jobs of a sweep without running any. Returns 2 if a job would raise `UserError`."""
    jobs = jobs_of(command.overrides, command.switches)
    order = by_models([job.overrides for job in jobs])
    jobs.sort(key=lambda job: order.index(job.overrides))
    planned = plan(jobs, value_of(command.overrides, "results", "results"))
    print_rows(command.form, [asdict(one) for one in planned], lambda: _draw(planned))
    for line in outline(planned, value_of(command.overrides, "experiment", "")):
        print(line, file=aside(command.form))
    return 2 if any(one.error for one in planned) else 0


def show_needs(command: CommandLine) -> int:
    """Show the needs of one run, without running it."""
    if (line := runs_left_out(command.overrides, RunConfig)) is not None:
        print(line, file=sys.stderr)
    launch_one(partial(_needs, command.form), RunConfig, command.argv, "run")
    return 0


def _needs(form: str, config: RunConfig) -> None:
    from specbench.choose.needs import of_run
    from specbench.cli.dry_run import show
    from specbench.experiment.run_parts import require_fitting, resolve
    from specbench.hub import NotCached

    check(config)
    check_own_rows(config.task, config.limit, later_turns=config.batch == 1)
    config = resolve(config)
    with contextlib.suppress(NotCached):  # a model that is to be fetched yet
        require_fitting(config)
    show(form, of_run(config))


def plan(jobs: Sequence[Job[RunConfig]], results: str) -> list[Planned]:
    """The needs of each job, from the records in `results`."""
    shared = set.intersection(*(set(job.overrides) for job in jobs))
    from specbench.records.catalog import Catalog  # torch is imported only from here on

    catalog = Catalog(results)
    rows = [row for row in catalog.rows() if not row.get("simulated") and not row.get(SERVED)]
    done = {row["run_id"] for row in Catalog(results, kept=False).rows()}  # kept copies are not taken up again
    return [_planned(job, shared, rows, done) for job in jobs]


def _planned(job: Job[RunConfig], shared: set[str], rows: Sequence[Row], done: set[str]) -> Planned:
    from specbench.choose.needs import (
        keys_of_run,
        machine_of,
        most_similar,
        prompts_of,
        seconds_a_prompt,
        weights_of,
    )
    from specbench.experiment.identity import identify
    from specbench.experiment.run_parts import resolve

    keys = " ".join(key for key in job.overrides if key not in shared)
    try:
        if job.config is None:
            raise UserError(job.error)
        check(job.config)
        config = resolve(job.config)
    except UserError as error:
        return Planned(keys, error=str(error))
    run_id, prompts = identify(config), prompts_of(config)
    like = most_similar(config, machine_of(config), keys_of_run(config), rows)
    seconds = None if like is None or prompts is None else like.get("warmup_s", 0) + prompts * seconds_a_prompt(like)
    seconds = seconds and config.runs * seconds
    return Planned(
        keys, run_id, run_id in done, prompts, weights_of(config), seconds, None if like is None else like["run_id"]
    )


def _draw(planned: Sequence[Planned]) -> None:
    console = wide_console()
    table = plain_table(("", "job", "prompts", "weights", "time", ""), left=("job",))
    for number, one in enumerate(planned, 1):
        state = one.error or ("done" if one.done else "")
        prompts = "?" if one.prompts is None else str(one.prompts)
        needs = (prompts, size(one.weights_bytes), duration(one.seconds))
        table.add_row(str(number), one.keys, *needs, state)
    console.print(table)


def outline(planned: Sequence[Planned], experiment: str) -> list[str]:
    """All of it in a few words, and what `experiments/` says of the sweep."""
    left = [one for one in planned if not one.done and not one.error]
    known = [one.seconds for one in left if one.seconds is not None]
    text = f"{with_noun(len(planned), 'job')}, {sum(one.done for one in planned)} of them done"
    if left:
        most = max((one.weights_bytes for one in left if one.weights_bytes is not None), default=None)
        text += f"; the largest needs {size(most)} for its weights, plus caches"
        text += (
            f"; one after the other about {duration(sum(known))}" if known else "; no record to estimate the time from"
        )
        text += f" for the {len(known)} whose time a record tells" if 0 < len(known) < len(left) else ""
    return [text, *(f"{experiment}: {line}" for line in times_of(experiment))]


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
        return sweep(command)
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


BASIC = "basic"
LOSING_LAUNCHERS = ("joblib", "submitit", "ray")  # packages whose errors say that a worker was lost


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
    for job in jobs:
        try:
            check(job.required())
        except UserError as error:
            errors |= {word: str(error) for word in job.overrides if word not in errors}
        else:
            possible.update(job.overrides)
    bad = next((word for word in errors if word not in possible), None)
    if bad is not None:
        raise UserError(f"{errors[bad]} (of this sweep no job has run)")


def _multirun(command: CommandLine) -> list[str]:
    return ["--multirun", *(switch for switch in command.switches if switch != "--multirun")]


def _show_first(command: CommandLine) -> int:
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


# One job: a composed config to a record and a line or a table on the screen, whichever process it runs in.

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
