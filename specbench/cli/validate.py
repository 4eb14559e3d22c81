"""`specbench validate`: calibrated against measured, every draft and gamma, in turn in one process."""

import sys

from specbench.cli.grid import launch_each
from specbench.config import ChooseConfig, check_choose

HELP = """usage: specbench validate target=NAME 'draft=[NAME,NAME,...]' [key=value ...]

Hold `specbench recommend` to account: every draft and gamma is timed in short passes, as a recommendation does, and
decodes all prompts, in turn in one process. Says by how much the calibrated speedup misses the measured one, with 95%
intervals; how gamma=auto and gamma=adaptive fare against the best fixed gamma on the same prompts; and what alpha costs
to learn by scoring and by decoding. Writes results/validate-TARGET-TASK-T.json and .md. Run it on a quiet machine.

  'draft=[A,B]' 'accept=[exact,block]' 'gammas=[1,3,5]'   as in `specbench recommend --help`
  rounds=N          of timed passes (default 6; 24 for intervals of use)
  repeats=N         times that each way decodes each prompt (default 2)
  sampling.temperature=T   one temperature (default 0)
  target= task= limit= tokens= max_new_tokens= seed= dtype= device= engine= threads= results=   as in `specbench run`
"""


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(HELP)
        return 0
    launch_each(job, "choose", ChooseConfig, argv, "validate")
    return 0


def job(configs: list[ChooseConfig]) -> None:
    for config in configs:
        check_choose(config)
    from specbench.choose.prediction_error import prediction_error  # torch is imported only from here on
    from specbench.cli.console import Screen
    from specbench.files import write_atomically
    from specbench.report.prediction_error import markdown

    with Screen(sys.stderr, "working", "{} of {}") as screen:
        file, record = prediction_error(configs, screen)
    text = markdown(record)
    shown = write_atomically(file.with_suffix(".md"), text)
    print(text)
    print(f"written: {file}, {shown}")
