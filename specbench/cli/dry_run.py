"""The jobs of a sweep with the time and memory of each, as far as they are known.

`specbench sweep --dry-run` lists them; a sweep prints their sum before it begins. Memory is that of the weights in the
run's dtype, without caches. Time is taken from the record of the most similar run on the same hardware: its seconds a
prompt, times the prompts. Nothing is loaded.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from specbench.cli.formats import aside, print_rows
from specbench.cli.overrides import CommandLine
from specbench.compose.hydra_app import Job, jobs_of
from specbench.compose.words import by_models, value_of
from specbench.config.checks import check
from specbench.config.model import ModelConfig, name_of
from specbench.config.schema import RunConfig, task_label
from specbench.errors import UserError
from specbench.records.schema import Row
from specbench.report.console import plain_table, wide_console
from specbench.report.paper import times_of

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# The more of these a record shares, the better it predicts.
COMPARED = ("draft", "temperature", "gamma", "accept", "batch")


@dataclass(frozen=True)
class Planned:
    """One job: the keys in which it differs, and its needs; None where they are not known."""

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


def plan(jobs: Sequence[Job[RunConfig]], results: str) -> list[Planned]:
    """The needs of each job, from the records in `results`."""
    shared = set.intersection(*(set(job.overrides) for job in jobs))
    from specbench.records.catalog import Catalog  # torch is imported only from here on

    catalog = Catalog(results)
    rows = [row for row in catalog.rows() if not row.get("simulated")]
    done = {row["run_id"] for row in Catalog(results, kept=False).rows()}  # kept copies are not taken up again
    return [_planned(job, shared, rows, done) for job in jobs]


def _planned(job: Job[RunConfig], shared: set[str], rows: Sequence[Row], done: set[str]) -> Planned:
    from specbench.environment import environment, hardware
    from specbench.experiment.build import resolve
    from specbench.experiment.identity import identify

    keys = " ".join(key for key in job.overrides if key not in shared)
    try:
        if job.config is None:
            raise UserError(job.error)
        check(job.config)
        config = resolve(job.config)
    except UserError as error:
        return Planned(keys, error=str(error))
    run_id, prompts = identify(config), _prompts(config)
    named = {"draft": config.draft.label(), "temperature": config.sampling.temperature, "gamma": config.gamma}
    machine = environment() | ({"threads": config.threads} if config.threads is not None else {})
    like = _most_similar(
        config, hardware(machine, config.device), named | {"accept": config.accept.rule, "batch": config.batch}, rows
    )
    seconds = None if like is None or prompts is None else like.get("warmup_s", 0) + prompts * _seconds_a_prompt(like)
    seconds = seconds and config.runs * seconds
    return Planned(
        keys, run_id, run_id in done, prompts, _weights(config), seconds, None if like is None else like["run_id"]
    )


def _prompts(config: RunConfig) -> int | None:
    """How many prompts the run decodes; None for a whole split of the hub, whose rows are not counted here."""
    from specbench.tasks import Task

    if config.task.path is None and config.task.shipped is None:
        return config.limit
    return len(Task(config.task).examples(config.limit))


def _weights(config: RunConfig) -> int | None:
    """Bytes of the weights of target and draft in the run's dtype."""
    from specbench.engine.weights import parameters

    models = [config.target, *(draft for draft in config.draft.levels() if isinstance(draft, ModelConfig))]
    counts = [parameters(model) for model in models]
    return None if None in counts else BYTES[config.dtype] * sum(count for count in counts if count)


def _most_similar(config: RunConfig, machine: str, named: Row, rows: Sequence[Row]) -> Row | None:
    """The record of the same target, task, dtype and hardware that shares most keys with the job, then the newest."""
    task = task_label(config.task.name, config.task.path)
    same = {"target": name_of(config.target), "task": task, "dtype": config.dtype, "hardware": machine}
    similar = [row for row in rows if all(row.get(key) == value for key, value in same.items())]
    return max(
        similar,
        key=lambda row: (sum(_of(row, key) == named[key] for key in COMPARED), str(row.get("created") or "")),
        default=None,
    )


def _of(row: Row, key: str) -> object:
    """A column of a record; those older than batches decoded one prompt at a time."""
    return row.get(key, 1 if key == "batch" else None)


def _seconds_a_prompt(row: Row) -> float:
    """Seconds of decoding a prompt with the target alone and with the draft, from a record."""
    target = row["tokens"] / row["prompts"] * row["target_step_s"] / (row.get("occupancy_baseline") or 1)
    return float(target * (1 + 1 / (row.get("speedup_measured") or 1)))


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
    text = f"{len(planned)} jobs, {sum(one.done for one in planned)} of them done"
    if left:
        most = max((one.weights_bytes for one in left if one.weights_bytes is not None), default=None)
        text += f"; the largest needs {size(most)} for its weights, plus caches"
        text += (
            f"; one after the other about {duration(sum(known))}" if known else "; no record to estimate the time from"
        )
        text += f" for the {len(known)} whose time a record tells" if 0 < len(known) < len(left) else ""
    return [text, *(f"{experiment}: {line}" for line in times_of(experiment))]


def size(count: int | None) -> str:
    """Bytes for a person; '?' where they are not known."""
    if count is None:
        return "?"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def duration(seconds: float | None) -> str:
    """A time for a person; '?' where it is not known."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
