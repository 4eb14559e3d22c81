"""The jobs of a sweep with the time and memory of each, as far as they are known, and the needs of one run.

`specbench sweep --dry-run` lists them; a sweep prints their sum before it begins. Memory counts the weights in the
run's dtype, without caches. Time is taken from the record of the most similar run on the same hardware: its seconds
per prompt, times the prompts. Nothing is loaded.
"""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from specbench.cli.formats import aside, print_rows
from specbench.cli.overrides import CommandLine
from specbench.compose.grid import runs_left_out
from specbench.compose.hydra_app import Job, jobs_of, launch_one
from specbench.compose.words import by_models, value_of
from specbench.config.checks import check
from specbench.config.schema import RunConfig
from specbench.errors import UserError
from specbench.formatting import duration, size
from specbench.nouns import with_noun
from specbench.records.run_record import Row
from specbench.records.served import SERVED
from specbench.report.console import plain_table, wide_console
from specbench.report.paper import times_of
from specbench.tasks import check_own_rows


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
