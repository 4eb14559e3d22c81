"""`specbench recommend --validate`: estimated against measured, every draft and gamma, interleaved in one process."""

from functools import partial

from specbench import api
from specbench.cli.alpha import LINE, LISTS
from specbench.cli.formats import aside, print_rows
from specbench.cli.overrides import CommandLine
from specbench.cli.usage import usage
from specbench.compose.grid import launch_each
from specbench.config.verbs import UNUSED, VALIDATE, ChooseConfig
from specbench.errors import UserError
from specbench.files import write_atomically
from specbench.report.prediction_error import markdown

ABOUT = """
Test the estimates of `specbench recommend`: every draft and gamma is timed in short passes, as for a recommendation,
and then decodes all prompts, interleaved in one process. Prints the error of the estimated speedup with 95% intervals,
how gamma=auto and gamma=adaptive compare with the best fixed gamma on the same prompts, and the time to estimate alpha
by scoring and by decoding. Writes results/validate/TARGET-TASK-T.json and .md. Run it on a quiet machine.
"""
RAW = ("rounds", "decoded", "configs", "environment", "alpha_rows")  # only in the record's file


def help_text() -> str:
    """What `specbench recommend --validate --help` prints."""
    return usage(VALIDATE, ABOUT, ChooseConfig, line=LINE, options=LISTS, unused=UNUSED[VALIDATE])


def validate(command: CommandLine, engine: str | None) -> None:
    """Compare the estimates of `specbench recommend` with measurements; `engine`: another engine that was named.

    Raises:
        UserError: an option of a ranking, or a value out of range.
    """
    if engine is not None:
        raise UserError(f"engine={engine}: --validate measures our own loop; recommend verify=N times this engine")
    if other := command.options.keys() - {"format", "validate", "engine"}:
        raise UserError(f"--{min(other)}: belongs to a ranking and not to --validate; give one of them")
    launch_each(partial(job, command.form), "choose", ChooseConfig, command.argv, VALIDATE)


def job(form: str, configs: list[ChooseConfig]) -> None:
    """Compare estimates with measurements and print the table."""
    file, record = api.validate(configs)
    text = markdown(record)
    shown = write_atomically(file.with_suffix(".md"), text)
    document = {name: value for name, value in record.items() if name not in RAW}
    print_rows(form, record["rows"], lambda: print(text), document=document)
    print(f"written: {file}, {shown}", file=aside(form))
