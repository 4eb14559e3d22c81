"""`specbench run`: one run; and what `run` and `sweep` have in common, their help."""

from functools import partial

from specbench.cli import sweep_log
from specbench.cli.job import job
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.compose.hydra_app import launch
from specbench.compose.words import GROUPS
from specbench.config.schema import RunConfig
from specbench.errors import UserError

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


def main(argv: list[str], verb: str = "run") -> int:
    """Run `specbench run` or `specbench sweep` (`verb`) with the words `argv`.

    Raises:
        UserError: a word that cannot be read.
    """
    if "--help" in argv or "-h" in argv:
        sweeping = verb == "sweep"
        about, options = (ABOUT + SWEEP, LAUNCHERS) if sweeping else (ABOUT, None)
        print(usage(verb, about, RunConfig, groups=PICKED, options=options))
        return 0
    command = read(argv, RunConfig, alone=("dry-run",))
    if verb == "sweep" or "--multirun" in command.switches:
        from specbench.cli.sweep import sweep

        return sweep(command)
    if "dry-run" in command.options:
        raise UserError("--dry-run: lists the jobs of a sweep; --cfg job shows the config of a run")
    sweep_log.begin()
    launch(partial(job, form=command.form), "run", RunConfig, command.argv, verb)
    return max((outcome["code"] for outcome in sweep_log.all_of(None)), default=0)
