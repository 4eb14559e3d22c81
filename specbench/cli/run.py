"""`specbench run` and `specbench sweep`: one run, or many."""

import os
import sys

from omegaconf import DictConfig

from specbench.cli import fail, outcomes
from specbench.cli.hydra_app import launch, to_schema
from specbench.config import RunConfig, check, conf_dir
from specbench.errors import MachineError, UserError

HELP = """usage: specbench {verb} [key=value ...]

Decode the prompts of a task with the target alone and with the target and a draft, side by side; measure alpha, c and
the speedup; write a record to results/runs/ and show it as a table.

  target=NAME       {targets}
                    or target.path=FOLDER, or target=hub target.hub=ID target.revision=COMMIT
  draft=NAME        the same names, draft.path=FOLDER, or unigram | bigram | random | lookup (no weights)
  task=NAME         {tasks}
                    task.path=FILE.jsonl[.gz] reads your own rows, task.train_path= the text n-grams are fitted on
  gamma=N           tokens drafted in a pass (default 7); gamma=auto takes the best by a short probe, gamma=adaptive
                    starts there and follows each text, gamma=heuristic follows it as transformers does
  draft.confidence=Q  ends a proposal behind a token whose own q is below Q; gamma stays the most
  accept=RULE       which drafted tokens stay: exact (default) | block, both lossless; lenient accept.lenience=L |
                    typical, both lossy
  sampling.temperature=T  sampling.top_k=K  sampling.top_p=P     for p and q alike (default T=0, argmax)
  max_new_tokens=N  limit=PROMPTS  seed=N  dtype=bfloat16|float32  device=cpu|cuda  threads=N
  results=FOLDER    where records go (default results)
  force=true        run again although the record of this very config is there
{sweep}
Hydra's switches work: --cfg job shows the whole config, --config-dir DIR adds your own choices,
hydra/launcher= picks where a sweep runs.
"""

SWEEP = """
Give several values with commas: specbench sweep gamma=1,3,5,7 draft=unigram,bigram,t5-small
"""


def main(argv: list[str], verb: str = "run") -> int:
    if "--help" in argv or "-h" in argv:
        choices = {group: ", ".join(sorted(p.stem for p in (conf_dir() / group).glob("*.yaml"))) for group in
                   ("target", "task")}  # fmt: skip
        print(HELP.format(verb=verb, targets=choices["target"], tasks=choices["task"],
                          sweep=SWEEP if verb == "sweep" else ""))  # fmt: skip
        return 0
    if verb == "sweep" and "--multirun" not in argv and "-m" not in argv:
        argv = ["--multirun", *argv]
    results = next((word.partition("=")[2] for word in argv if word.startswith("results=")), "results")
    outcomes.begin(results, sweep="--multirun" in argv or "-m" in argv)
    launch(job, "run", RunConfig, argv, verb)
    ended = outcomes.end()
    failed = [outcome for outcome in ended if outcome["code"]]
    if verb == "sweep" and ended:
        print(f"{len(ended) - len(failed)} of {len(ended)} runs done; 'specbench results' shows them", file=sys.stderr)
        for outcome in failed:
            print(f"failed: {outcome['error']}", file=sys.stderr)
    return max((outcome["code"] for outcome in ended), default=0)


def job(composed: DictConfig) -> None:
    """One run of a composed config. Importable by name, so that launchers in other processes find it.

    An error is told and noted here, so that in a sweep a failing job fails alone.
    """
    try:
        config = to_schema(composed, RunConfig)
        check(config)
        from specbench.cli.screen import Screen  # torch is imported only from here on
        from specbench.run import execute, follow, rank

        if rank() > 0:
            with open(os.devnull, "w") as nowhere, Screen(nowhere) as silent:
                follow(config, silent)
            return
        with Screen(sys.stderr) as screen:
            result = execute(config, screen)
        screen.show(result)
        outcomes.add(code=0, run_id=result.record["run_id"])
    except (UserError, MachineError) as error:
        fail(str(error), error.exit_code)
        outcomes.add(code=error.exit_code, error=str(error))
