"""Other engines: `--for ENGINE` prints settings, `engine=transformers` times that engine instead of our loop.

Settings are of a new document or of a saved one.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.cli.formats import print_rows, print_settings
from specbench.cli.overrides import CommandLine
from specbench.config.server import STARTED
from specbench.config.verbs import ChooseConfig
from specbench.errors import MachineError, UserError, closest_first
from specbench.formatting import interval_of
from specbench.interop.serving.settings import EngineSettings, parse_schedule, settings_for
from specbench.interop.serving.settings.engines import ENGINES
from specbench.recorded import from_json, to_json
from specbench.records.choosing import LoadSpan

if TYPE_CHECKING:
    from specbench.interop.starting.measure_started import Checked

TRANSFORMERS = "transformers"


def without_engine(command: CommandLine) -> tuple[CommandLine, str | None]:
    """`command` with an engine of ours, and the other engine that it names, if any.

    With another engine our models only score, so they run eagerly, which needs no preparation. Raises UserError if
    `engine=openai`, which cannot be timed from the command line.
    """
    engine = command.options.get("engine")
    if engine is None:
        return command, None
    if engine == "openai":
        raise UserError(
            "engine=openai: recommend cannot time a server, which drafts as it was started; measure two of them with "
            "specbench server URL plain=URL (docs/server.md), or ask for its settings with --for"
        )
    ours = "eager" if engine == TRANSFORMERS else engine
    overrides = [*command.overrides, f"engine={ours}"]
    return replace(command, overrides=overrides), engine if engine == TRANSFORMERS else None


def requested(options: Mapping[str, str]) -> list[str]:
    """The engines that --for names. Raises UserError for an unknown engine, or for an option that needs --for."""
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
    if "load_id" in document and "schedule" not in options:
        return settings_under_load(document, requested(options))
    schedule = parse_schedule(options["schedule"]) if "schedule" in options else ()
    return [settings_for(document, name, schedule) for name in requested(options)]


def engines_to_check_in(
    options: Mapping[str, str], count: int, timed: str | None = None, kinds: Collection[str] = ()
) -> list[str]:
    """The engines that `--for` names, if `verify=` asks for checks, that are started and installed here.

    `timed`: the engine that is timed for the ranking instead of our loop. `kinds`: of the drafts that are ranked; an
    engine must be started with one of them. For each other, and if that or our loop is measured because there is none,
    a line on standard error.
    """
    names = requested(options)
    if count == 0 or not names:
        return []
    from specbench.interop.starting.startable import STARTABLE, kinds_started

    found = list[str]()
    for name in dict.fromkeys(names):
        if name == timed:
            continue
        if name not in STARTED:
            why = f"is not started here (only {', '.join(STARTED)} are)"
        elif STARTABLE[name].program() is None:
            why = f"is not installed here ({STARTABLE[name].variable} names its program)"
        elif kinds and not {*kinds} & {*(read := kinds_started(name))}:
            why = f"is started here with {' or '.join(f'draft={kind}' for kind in read)} only"
        else:
            found.append(name)
            continue
        print(f"verify={count}: {ENGINES[name].title} {why}; it is not measured", file=sys.stderr)
    if not found and timed not in names:
        print(f"verify={count}: {timed or 'our own loop'} is measured instead", file=sys.stderr)
    return found


Failure = UserError | MachineError | KeyboardInterrupt


def in_engines(
    engines: Sequence[str], document: Mapping[str, Any], configs: Sequence[ChooseConfig]
) -> tuple[list[dict[str, Any]], Failure | None]:
    """Rows of the best candidates, measured in each engine: estimated beside measured; and what ended it, if it failed.

    An engine that fails is a line on standard error and the next is measured; Ctrl-C ends it.
    """
    from specbench.interop.starting.measure_started import check_in_engine
    from specbench.report.console import Screen

    rows, failed = list[dict[str, Any]](), None
    for engine in engines:
        before = len(rows)
        try:
            with Screen(sys.stderr, "asking", "asked {} of {} prompts") as screen:
                for one in check_in_engine(engine, document, configs[0], configs[0].verify, screen):
                    rows.append(_row(one))
            if len(rows) == before:
                print(f"{engine}: none of the ranked candidates can be set there; none is measured", file=sys.stderr)
        except (UserError, MachineError) as error:
            if failed is not None:
                print(f"specbench: {failed}", file=sys.stderr)
            failed = error
        except KeyboardInterrupt as interrupt:
            return rows, interrupt
    return rows, failed


def _row(one: Checked) -> dict[str, Any]:
    summary: Mapping[str, Any] = one.found.record["summary"]
    measured = summary["speedup_measured"]
    return {
        "engine": summary["engine"], "candidate": one.candidate, "gamma": one.gamma, "batch": one.batch,
        "estimated": one.estimated, "measured": measured, "measured_low": summary["speedup_low"],
        "measured_high": summary["speedup_high"],
        "off": one.estimated / measured - 1 if measured else None,
        "tokens_per_pass": summary["tokens_per_pass"], "verdict": summary["verdict"],
        "run_id": one.found.record["run_id"],
    }  # fmt: skip


def print_checked(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each candidate that was measured in its engine."""
    for row in rows:
        measured = "no speedup"
        if row["measured"] is not None:
            measured = f"measured {interval_of(row, 'measured')}×, prediction error {row['off']:+.0%}"
        batch = "" if row["batch"] == 1 else f" at batch={row['batch']}"
        print(
            f"{row['engine']}, {row['candidate']} with γ={row['gamma']}{batch}: calibrated for our loop "
            f"{row['estimated']:.2f}×, {measured}; {row['verdict']}"
        )


def of_saved(form: str, options: Mapping[str, str]) -> None:
    """Print what to set for a recommendation that was saved. Raises UserError if its file is none."""
    from specbench.border import Unreadable
    from specbench.records.documents import read_document

    file = Path(options["from"])
    if not file.exists():
        raise UserError(
            f"--from {file}: there is no file of that name; specbench recommend writes results/recommend/ID.json"
        )
    try:
        document = read_document(file)
    except Unreadable as error:
        raise UserError(f"--from {file}: is not a JSON document ({error})") from error
    shown = settings_of_engines(document, options)
    print_rows(form, shown, lambda: print_settings(shown))


GOODPUT = "highest goodput over the target's own, simulated"


def settings_under_load(record: Mapping[str, Any], engines: list[str]) -> list[EngineSettings]:
    """The settings of each engine for the candidates, best goodput first, each with its own gamma by batch size."""
    rows, found = as_ranking(record), list[EngineSettings]()
    for name in engines:
        settings = settings_for({"rows": []}, name)
        refused = [] if rows else ["no draft pays at any load here: serve without one"]
        for row in rows:
            document = {**record, "rows": [row]}
            settings = settings_for(document, name, row["schedule"])
            refused += settings["refused"]
            if settings["gamma"] is not None:
                break
        found.append(settings | {"refused": refused, "measure": GOODPUT})
    return found


def as_ranking(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each candidate that pays at some load, as in a ranking, with its schedule."""
    goodput: dict[str, float] = {}
    # More tokens per second at some number of rows are not more requests served in time.
    pays = {row["candidate"] for row in record["best"]}
    for row in record["rows"]:
        goodput[row["candidate"]] = max(goodput.get(row["candidate"], 0.0), row["goodput"])
    known = {one["candidate"]: one for one in record["alpha_rows"]}
    rows = []
    for name in sorted(pays & {*record["schedules"]}, key=lambda name: -goodput[name]):
        spans = from_json(list[LoadSpan], to_json(record["schedules"][name]))
        drafting = [span.gamma for span in spans if span.gamma]
        if drafting:
            rows.append({
                **known[name], "gamma": drafting[0], "schedule": spans,
                "estimated": {"value": goodput[name] / goodput["none"]},
            })  # fmt: skip
    return rows
