"""`specbench misses`: calibrated against measured, every draft and gamma, in turn in one process."""

import sys

from specbench.cli.lists import launch_each
from specbench.config import ChooseConfig, check_choose

HELP = """usage: specbench misses target=NAME 'draft=[NAME,NAME,...]' [key=value ...]

Hold `specbench recommend` to account: every draft and gamma is timed in short passes, as a recommendation does, and
decodes all prompts, in turn in one process. Says by how much the calibrated speedup misses the measured one, with 95%
intervals; how gamma=auto and gamma=adaptive fare against the best fixed gamma on the same prompts; and what alpha costs
to learn by scoring and by decoding. Writes results/misses-TARGET-TASK-T.json and .md. Run it on a quiet machine.

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
    launch_each(job, "choose", ChooseConfig, argv, "misses")
    return 0


def job(configs: list[ChooseConfig]) -> None:
    for config in configs:
        check_choose(config)
    from specbench.choose.misses import misses  # torch is imported only from here on
    from specbench.cli.screen import Screen
    from specbench.files import write_atomically
    from specbench.report.misses import markdown

    with Screen(sys.stderr, "working", "{} of {}") as screen:
        file, record = misses(configs, screen)
    text = markdown(record)
    shown = write_atomically(file.with_suffix(".md"), text)
    print(text)
    print(f"written: {file}, {shown}")
