"""`specbench recommend --validate`: estimated against measured, every draft and gamma, interleaved in one process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from specbench import api
from specbench.cli.formats import aside, print_rows
from specbench.cli.overrides import CommandLine
from specbench.compose.grid import launch_each
from specbench.config.verbs import VALIDATE, ChooseConfig
from specbench.errors import UserError
from specbench.files import write_atomically
from specbench.records.choosing import RecommendDocument, ValidateDocument
from specbench.report.ranking import markdown


def of_contexts(configs: Sequence[ChooseConfig]) -> list[list[ChooseConfig]]:
    """`configs` in groups of one context."""
    return [[one for one in configs if one.context == context] for context in dict.fromkeys(c.context for c in configs)]


def compare_contexts(form: str, documents: Sequence[RecommendDocument | ValidateDocument]) -> None:
    """Print the candidates of several contexts, the best of each, and what is forecast of others."""
    from specbench.report.context_tables import draw_documents, rows_of_documents

    rows = rows_of_documents(documents)
    print_rows(form, rows, lambda: draw_documents(rows))


VALIDATE_ABOUT = """
Test the predictions of `specbench recommend`: every draft and gamma is timed in short passes, as for a recommendation,
and then decodes all prompts, interleaved in one process. Prints the error of the calibrated speedup with 95% intervals,
how gamma=auto and gamma=adaptive compare with the best fixed gamma on the same prompts, and the time to estimate alpha
by scoring and by decoding. Writes results/validate/TARGET-TASK-T.json and .md. Run it on a quiet machine.
"""
RAW = ("rounds", "decoded", "configs", "environment", "alpha_rows")  # only in the record's file


def validate(command: CommandLine, engine: str | None) -> None:
    """Compare the estimates of `specbench recommend` with measurements; `engine`: another engine that was named.

    Raises UserError for an option of a ranking, or a value out of range.
    """
    if engine is not None:
        raise UserError(f"engine={engine}: --validate measures our own loop; recommend verify=N times this engine")
    if other := command.options.keys() - {"format", "validate", "engine"}:
        raise UserError(f"--{min(other)}: belongs to a ranking and not to --validate; give one of them")
    launch_each(partial(validation, command.form), ChooseConfig, command.argv, VALIDATE)


def validation(form: str, configs: list[ChooseConfig]) -> None:
    """Compare estimates with measurements and print the table, one per context."""
    if len(by_context := of_contexts(configs)) > 1:
        measured = [api.validate(group) for group in by_context]
        for file, record in measured:
            write_atomically(file.with_suffix(".md"), text := markdown(record))
            print(text, file=aside(form))
        compare_contexts(form, [record for _, record in measured])
        print(f"written: {', '.join(str(file) for file, _ in measured)}", file=aside(form))
        return
    file, record = api.validate(configs)
    text = markdown(record)
    shown = write_atomically(file.with_suffix(".md"), text)
    document = {name: value for name, value in record.items() if name not in RAW}
    print_rows(form, record["rows"], lambda: print(text), document=document)
    print(f"written: {file}, {shown}", file=aside(form))
