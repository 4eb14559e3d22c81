"""`specbench run`: one run; and what `run` and `sweep` have in common, their help."""

from specbench.cli import sweep_log
from specbench.cli.hydra_app import launch
from specbench.cli.job import job
from specbench.cli.usage import usage
from specbench.config import RunConfig

ABOUT = """
Decode the prompts of a task with the target alone and with the target and a draft, side by side; measure alpha, c and
the speedup; write a record to results/runs/ and show it as a table.
"""
SWEEP = """
The same for each combination of several values, given with commas: specbench sweep gamma=1,3,5,7 draft=unigram,bigram
"""
GROUPS = ("target", "draft", "task", "accept", "experiment")
LAUNCHERS = {
    "hydra/launcher=NAME": "where a sweep runs: joblib | submitit_local | submitit_slurm | ray (docs/sweeps.md)"
}


def main(argv: list[str], verb: str = "run") -> int:
    if "--help" in argv or "-h" in argv:
        sweeping = verb == "sweep"
        about, options = (ABOUT + SWEEP, LAUNCHERS) if sweeping else (ABOUT, None)
        print(usage(verb, about, RunConfig, groups=GROUPS, options=options))
        return 0
    if verb == "sweep" and "--multirun" not in argv and "-m" not in argv:
        argv = ["--multirun", *argv]
    if "--multirun" in argv or "-m" in argv:
        from specbench.cli.sweep import sweep

        return sweep(argv, verb)
    sweep_log.begin()
    launch(job, "run", RunConfig, argv, verb)
    return max((outcome["code"] for outcome in sweep_log.all_of(None)), default=0)
