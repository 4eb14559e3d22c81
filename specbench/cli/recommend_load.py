"""`specbench recommend --load`: goodput with and without speculation at each load, and the gamma for each."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from specbench import api
from specbench.cli.formats import aside, draw_picture, picture_file, print_rows, print_settings
from specbench.cli.other_engines import settings_under_load
from specbench.cli.overrides import CommandLine
from specbench.compose.grid import launch_each
from specbench.config.verbs import LOAD, LoadConfig
from specbench.errors import UserError
from specbench.files import require_writable

LOAD_ABOUT = """
Simulate a server under load: requests arrive at random, wait for a place in our continuous batching, and decode with
each draft and gamma, and without. Costs of starts, joins and passes are timed in real batches; the simulation says
goodput (requests per second within what is promised), p50, p95 and p99 of both times, the best gamma at each load, and
the number of requests at a time from which no draft pays. Writes results/load/ID.json.
"""
LOAD_OPTIONS = {
    "batch=1,2,4,8": "(default) batch sizes at which costs are timed; the largest is the server's",
    "verify=N": "serve N of the loads for real, without a draft and with the best, and print the simulation's errors",
    "--picture FILE": "draw goodput against load: .svg, .pdf or .png",
    "--for ENGINE[,ENGINE]": "print settings with gamma by batch size for another engine that has such a schedule",
}


def main_under_load(command: CommandLine, engine: str | None, engines: list[str]) -> None:
    """Run `specbench recommend --load`; `engine`: another engine to time, `engines`: those that --for names.

    Raises UserError for an option of a ranking, or a value out of range.
    """
    if engine is not None:
        raise UserError(f"engine={engine}: --load times our own batching")
    if other := command.options.keys() - {"format", "load", "picture", "for", "engine"}:
        raise UserError(f"--{min(other)}: does not go with --load; give one of them")
    picture = picture_file(command.options.get("picture"))
    if picture is not None:
        require_writable(picture.parent, "--picture FILE")
    argv = [f"batches=[{word[6:].strip('[]')}]" if word.startswith("batch=") else word for word in command.argv]
    if not any(word.startswith("batches=") for word in argv):
        argv.append("batches=[1,2,4,8]")
    launch_each(partial(load_job, command.form, engines, picture), LoadConfig, argv, LOAD)


def load_job(form: str, engines: list[str], picture: Path | None, configs: list[LoadConfig]) -> None:
    """Simulate the loads, print the table, and on request a picture and the settings of other engines."""
    from specbench.report.load_tables import draw

    file, record = api.rank_under_load(configs)
    shown = settings_under_load(record, engines)
    document: dict[str, object] = {
        name: value for name, value in record.items() if name not in ("configs", "environment")
    }
    document |= {"for": shown} if shown else {}
    print_rows(form, record["rows"], lambda: draw(record), document=document)
    if form == "table":
        print_settings(shown)
    print(f"record: {file}", file=aside(form))
    if picture is not None:
        from specbench.report.figures.goodput import goodput

        draw_picture(picture, partial(goodput, record), form)
