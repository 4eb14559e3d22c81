"""Other engines in `specbench recommend`.

`--for ENGINE` prints its settings, from a new document or a saved one; `engine=transformers` times that engine instead
of our loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.cli.formats import print_rows
from specbench.cli.overrides import CommandLine
from specbench.errors import UserError, closest_first
from specbench.escaping import printable
from specbench.interop.serving.engine_settings import EngineSettings, parse_schedule, settings_for
from specbench.interop.serving.settings import ENGINES

if TYPE_CHECKING:
    pass

TRANSFORMERS = "transformers"
OPTIONS = {
    "engine=transformers": "time assisted generation instead of our loop: c, v and overhead are its own, speedups are "
    "those of whole calls of generate(), and verify= runs them",
    "--for ENGINE[,ENGINE]": f"print the settings for another engine: {', '.join(ENGINES)}",
    "--from FILE": "with --for: read a saved recommendation (results/recommend/ID.json), without loading models",
    "--schedule SPANS": "with --for: γ by batch size where the engine has such a schedule, 1-8:5,9-32:2,33-:0",
}


def without_engine(command: CommandLine) -> tuple[CommandLine, str | None]:
    """`command` with an engine of ours, and the other engine that it names, if any.

    With another engine our models only score, so they run eagerly, which needs no preparation.

    Raises:
        UserError: `engine=openai`, which cannot be timed from the command line.
    """
    engine = command.options.get("engine")
    if engine is None:
        return command, None
    if engine == "openai":
        raise UserError(
            "engine=openai: recommend cannot time a server, which drafts as it was started; time two of them from "
            "Python (specbench.serving.openai, docs/serving.md), or ask for its settings with --for"
        )
    ours = "eager" if engine == TRANSFORMERS else engine
    overrides = [*command.overrides, f"engine={ours}"]
    return replace(command, overrides=overrides), engine if engine == TRANSFORMERS else None


def requested(options: Mapping[str, str]) -> list[str]:
    """The engines that --for names. Raises UserError for one that is not known, or for what goes with --for alone."""
    if "for" not in options:
        alone = next((name for name in ("from", "schedule") if name in options), None)
        if alone is not None:
            raise UserError(f"--{alone}: goes with --for ENGINE")
        return []
    names = [name for name in options["for"].split(",") if name]
    for name in names or [""]:
        if name not in ENGINES:
            raise UserError(f"--for {name}: no such engine; choose from {', '.join(closest_first(name, ENGINES))}")
    if "schedule" in options:
        parse_schedule(options["schedule"])
    return names


def settings_of_engines(document: Mapping[str, Any], options: Mapping[str, str]) -> list[EngineSettings]:
    """The settings of each engine that `options` name."""
    schedule = parse_schedule(options["schedule"]) if "schedule" in options else ()
    return [settings_for(document, name, schedule) for name in requested(options)]


def of_saved(form: str, options: Mapping[str, str]) -> None:
    """Print what to set for a recommendation that was saved. Raises UserError where its file is none."""
    from specbench.records.documents import read_document

    file = Path(options["from"])
    try:
        document = read_document(file)
    except OSError as error:
        raise UserError(f"--from {file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"--from {file}: is not a JSON document ({error})") from error
    if not isinstance(document, dict):
        raise UserError(f"--from {file}: is not a document of `specbench recommend`")
    shown = settings_of_engines(document, options)
    print_rows(form, shown, lambda: draw(shown))


def draw(shown: Sequence[EngineSettings]) -> None:
    """Print the settings of each engine, to be copied as they are."""
    for one in shown:
        print(printable(text(one)))


def text(one: EngineSettings) -> str:
    """The settings of one engine for people."""
    engine = ENGINES[one["engine"]]
    lines = ["", f"{engine.title}: names checked against {one['checked']}; {one['page']}"]
    lines += [f"· {reason}" for reason in one["refused"]]
    if one["gamma"] is None:
        return "\n".join([*lines, f"· {engine.title} supports no candidate of this recommendation"])
    lines.append(f"{one['candidate']} with γ={one['gamma']}, estimated at {one['estimated']:.2f}× here")
    if one["file"] is not None:
        lines += [f"  {one['file']['name']}:", *(f"    {line}" for line in one["file"]["content"].splitlines())]
    lines += [f"  {line}" for line in one["command"].splitlines()]
    return "\n".join([*lines, *(f"· {note}" for note in one["notes"])])
