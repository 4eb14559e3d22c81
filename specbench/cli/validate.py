"""`specbench validate`: estimated against measured, every draft and gamma, interleaved in one process."""

import sys
from functools import partial

from specbench.cli.alpha import LINE, LISTS
from specbench.cli.formats import aside, print_rows
from specbench.cli.grid import launch_each
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.config import ChooseConfig, check_choose
from specbench.config.choose import UNUSED
from specbench.files import require_writable, write_atomically

ABOUT = """
Hold `specbench recommend` to account: every draft and gamma is timed in short passes, as a recommendation does, and
decodes all prompts, interleaved in one process. Says how far the estimated speedup lies from the measured, with 95%
intervals; how gamma=auto and gamma=adaptive fare against the best fixed gamma on the same prompts; and what it costs to
learn alpha by scoring and by decoding. Writes results/validate/TARGET-TASK-T.json and .md. Run it on a quiet machine.
"""
RAW = ("rounds", "decoded", "configs", "environment", "alpha_rows")  # in the record's file alone


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(usage("validate", ABOUT, ChooseConfig, line=LINE, options=LISTS, unused=UNUSED["validate"]))
        return 0
    command = read(argv, ChooseConfig)
    launch_each(partial(job, command.form), "choose", ChooseConfig, command.argv, "validate")
    return 0


def job(form: str, configs: list[ChooseConfig]) -> None:
    for config in configs:
        check_choose(config)
    require_writable(configs[0].results)
    from specbench.choose.prediction_error import prediction_error  # torch is imported only from here on
    from specbench.cli.console import Screen
    from specbench.report.prediction_error import markdown

    with Screen(sys.stderr, "working", "{} of {}") as screen:
        file, record = prediction_error(configs, screen)
    text = markdown(record)
    shown = write_atomically(file.with_suffix(".md"), text)
    document = {name: value for name, value in record.items() if name not in RAW}
    print_rows(form, record["rows"], lambda: print(text), document=document)
    print(f"written: {file}, {shown}", file=aside(form))
