"""`specbench run`: one run; and what `run` and `sweep` have in common, their help."""

from specbench.cli import sweep_log
from specbench.cli.hydra_app import launch
from specbench.cli.job import job
from specbench.config import RunConfig, conf_dir

HELP = """usage: specbench {verb} [key=value ...]

Decode the prompts of a task with the target alone and with the target and a draft, side by side; measure alpha, c and
the speedup; write a record to results/runs/ and show it as a table.

  target=NAME       {targets}
                    or target.path=FOLDER, or target=hub target.hub=ID target.revision=COMMIT
  draft=NAME        the same names, draft.path=FOLDER, or unigram | bigram | ngram draft.order=N | random | lookup |
                    retrieval (no weights); cascade draft@draft.via=NAME draft@draft.inner=NAME (docs/beyond.md);
                    inside the target: early-exit draft.layers=K, blockwise (draft.path=FOLDER)
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
    if "--multirun" in argv or "-m" in argv:
        from specbench.cli.sweep import sweep

        return sweep(argv, verb)
    sweep_log.begin()
    launch(job, "run", RunConfig, argv, verb)
    return max((outcome["code"] for outcome in sweep_log.all_of(None)), default=0)
