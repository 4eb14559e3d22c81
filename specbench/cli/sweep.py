"""`specbench sweep`: many jobs, wherever Hydra's launchers run them, and one account of them at the end."""

import sys
from pathlib import Path
from typing import Any

from specbench.cli import sweep_log
from specbench.cli.hydra_app import launch
from specbench.cli.job import job
from specbench.cli.launcher import ordered_launcher
from specbench.cli.results import table
from specbench.config import RunConfig
from specbench.errors import MachineError, UserError, error_line
from specbench.records import store

LAUNCHERS = ("joblib", "submitit", "ray")  # packages whose errors say that a worker was lost


def sweep(argv: list[str], verb: str) -> int:
    """Launch all jobs and say what became of them, however it ends. Returns the exit code, the gravest of all jobs."""
    values = dict(word.partition("=")[::2] for word in argv)
    file = sweep_log.new_file(values.get("results", "results").strip("'\""))
    sweep_log.begin()
    # Among the keys, which argparse wants side by side, and before them, so that a user's own are the last word.
    first = next((place for place, word in enumerate(argv) if "=" in word and word[0] != "-"), len(argv))
    try:
        with ordered_launcher():
            launch(job, "run", RunConfig, [*argv[:first], *sweep_log.overrides(file), *argv[first:]], verb)
    except UserError:
        raise  # refused as a whole, before the first job
    except BaseException as error:
        _tell(sweep_log.all_of(file), file, all_launched=False)
        if type(error).__module__.partition(".")[0] not in LAUNCHERS:
            raise
        raise MachineError(
            f"hydra/launcher={values.get('hydra/launcher')}: {error_line(error)}; "
            "what was finished is kept: run the same command again"
        ) from error
    ended = sweep_log.all_of(file)
    _tell(ended, file, all_launched=True)
    return max((outcome["code"] for outcome in ended), default=0)


def _tell(ended: list[dict[str, Any]], file: Path, all_launched: bool) -> None:
    """All runs that are done as one table, and a line for each that failed."""
    if not ended:
        return
    done = [outcome for outcome in ended if not outcome["code"]]
    if done:
        table([store.read_head(Path(outcome["record"])).row for outcome in done])
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
