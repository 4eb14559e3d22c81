"""`specbench alpha`, the acceptance rate of many drafts, and `specbench recommend`, which draft and which gamma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from specbench import api
from specbench.cli.dry_run import DRY_RUN
from specbench.cli.formats import aside, draw_picture, picture_file, print_rows, print_settings
from specbench.cli.overrides import CommandLine, read
from specbench.cli.usage import usage
from specbench.compose.grid import launch_each
from specbench.config.verbs import LOAD, VALIDATE, ChooseConfig, LoadConfig, check_choose, refused
from specbench.errors import UserError, closest_first
from specbench.files import require_writable, write_atomically
from specbench.interop.serving.settings import EngineSettings, parse_schedule, settings_for
from specbench.interop.serving.settings.engines import ENGINES, Span
from specbench.nouns import with_noun
from specbench.records.choosing import RecommendDocument, ValidateDocument
from specbench.report.alpha_tables import draw as draw_alphas
from specbench.report.ranking import draw, markdown

ALPHA_ABOUT = """
Estimate alpha of every draft on one sample: the target writes its completions once (cached in results/samples/), and
each draft is scored on them by teacher forcing. No gamma is tried, since alpha does not depend on it. Prints a table
with 95% intervals and writes results/alpha/ID.json.
"""
LISTS = {
    "draft=A,B": "drafts of `specbench run`; draft.path=DIR1,DIR2 adds folders to this list; "
    "draft.top_tokens=null,1000 compares heads of all and of the 1,000 likeliest tokens",
    "accept=exact,typical": "score each draft under each rule: the share of drafted tokens that the rule "
    "accepts, and the total variation of its output from the target; accept.lenience= may be a list",
}
LINE = "target=NAME draft=NAME,NAME,... [key=value ...]"
ALPHA_OPTIONS = LISTS | {
    "sampling.temperature=0,1": "(default: both, a sample for each: alpha at T is defined along completions "
    "that the target samples at T)",
    "experiment=NAME": "the target, drafts and temperatures of a table of the paper: experiment=table3 task=ende",
    "--verbose": "also alpha by position and by rule, of trees, bounds on short heads and on routers, and times",
    **DRY_RUN,
}


def alpha(argv: list[str]) -> int:
    """Run `specbench alpha` with the words `argv`."""
    command = read(
        argv,
        ChooseConfig,
        lambda: usage("alpha", ALPHA_ABOUT, ChooseConfig, line=LINE, options=ALPHA_OPTIONS, unused=refused("alpha")),
        alone=("verbose", "dry-run"),
    )
    task = partial(score, command.form)
    if "dry-run" in command.options:
        task = partial(only_needs, "alpha", command.form)
    elif "verbose" in command.options:
        task = partial(task, verbose=True)
    launch_each(task, ChooseConfig, command.argv, "alpha", api.BOTH_TEMPERATURES)
    return 0


def only_needs(verb: str, form: str, configs: list[ChooseConfig]) -> None:
    """Print what `verb` needs for `configs`. Raises UserError as `verb` does before it loads anything."""
    for config in configs:
        check_choose(config)
    from specbench.choose.needs import of_alpha, of_recommend
    from specbench.cli.dry_run import show

    show(form, (of_alpha if verb == "alpha" else of_recommend)(configs))


def score(form: str, configs: list[ChooseConfig], verbose: bool = False) -> None:
    """Score the drafts of `configs`; print the table and the record's file; `verbose`: all tables, and times."""
    from specbench.report.console import terminal
    from specbench.stats import FEW_PROMPTS

    found = api.score(configs)
    rows = found.record["rows"]
    print_rows(form, rows, lambda: draw_alphas(found.record, verbose))
    console = terminal(aside(form))
    for setting in found.record["settings"]:
        if not verbose:
            if signs := setting.get("disturbed_by"):
                console.print(f"T={setting['temperature']:g}: CONTENDED: {signs}; α is valid, times are not")
            continue
        kept = f" ({setting['texts_reused']} completions from the cache)" if setting["texts_reused"] else ""
        console.print(
            f"T={setting['temperature']:g}: sampling took {setting['sample_s']:.1f} s{kept}; "
            f"scoring {len(setting['drafts'])} drafts took {setting['score_s']:.1f} s"
            + (f"; CONTENDED, so these times are too long: {signs}" if (signs := setting.get("disturbed_by")) else "")
        )
    if (fewest := min(row["prompts"] for row in rows)) < FEW_PROMPTS:
        console.print(f"only {with_noun(fewest, 'prompt')}: the intervals are rough")
    if not verbose:
        console.print("by position, by rule, trees, bounds and times: the same command with --verbose")
    console.print(f"record: {found.file}")


ABOUT = """
Rank drafts and gammas by their calibrated speedup, with a 95% interval: alpha is estimated on the target's own
completions (as in `specbench alpha`), the cost of a pass is timed in short passes of the real loop. Explains the
ranking, and what would have to change for the next candidate to win. Writes results/recommend/ID.json.
"""
TRANSFORMERS = "transformers"
OPTIONS = LISTS | {
    "tree=none,sequoia": "rank chains (none) and trees; tree.size=8,16,32, tree.depth= and tree.children= "
    "may be lists too",
    "context=1k,4k": "a ranking for each length of prompts made from the task's rows, and a forecast between them",
    "batch=1,4,16": "a ranking for each batch size, and the batch size from which no draft pays",
    "--load": "goodput at each load of a server, and the best gamma there: specbench recommend --load --help",
    "--validate": "test the predictions instead: every draft and gamma decodes all prompts; "
    "specbench recommend --validate --help tells more",
    **DRY_RUN,
    "--picture FILE": "draw the ranking: .svg, .pdf or .png",
    "engine=transformers": "time assisted generation instead of our loop: c, v and overhead are its own, speedups are "
    "those of whole calls of generate(), and verify= runs them",
    "--for ENGINE[,ENGINE]": f"print the settings for another engine: {', '.join(ENGINES)}",
    "--from FILE": "with --for: read a saved one (results/recommend/ID.json or load/ID.json), without loading models",
    "--schedule SPANS": "with --for: γ by batch size where the engine has such a schedule, 1-8:5,9-32:2,33-:0",
}


def main(argv: list[str]) -> int:
    """Run `specbench recommend` with the words `argv`."""
    command = read(
        argv,
        LoadConfig if "--load" in argv else ChooseConfig,
        partial(_help, argv),
        valued=("picture", "for", "from", "schedule", "engine"),
        alone=("validate", "load", "dry-run"),
    )
    if other := next((name for name in ("load", "validate") if {name, "dry-run"} <= command.options.keys()), None):
        raise UserError(f"--dry-run: is not known for --{other}; leave one of them out")
    command, engine = without_engine(command)
    if "load" in command.options:
        main_under_load(command, engine, requested(command.options))
        return 0
    if "validate" in command.options:
        validate(command, engine)
        return 0
    if requested(command.options) and "from" in command.options:
        if command.argv:
            raise UserError(f"{command.argv[0]}: --from takes all of the recommendation from its file")
        of_saved(command.form, command.options)
        return 0
    if "dry-run" in command.options:
        launch_each(partial(only_needs, "recommend", command.form), ChooseConfig, _batches(command.argv), "recommend")
        return 0
    picture = picture_file(command.options.get("picture"))
    if picture is not None:
        require_writable(picture.parent, "--picture FILE")
    task = partial(job, command.form, command.options, engine, picture)
    launch_each(task, ChooseConfig, _batches(command.argv), "recommend")
    return 0


def _batches(argv: Sequence[str]) -> list[str]:
    """`batch=1,4` as the list that it means."""
    return [f"batches=[{word[6:].strip('[]')}]" if word.startswith("batch=") else word for word in argv]


def _help(argv: Sequence[str]) -> str:
    if "--load" in argv:
        return usage(LOAD, LOAD_ABOUT, LoadConfig, line=LINE, options=LISTS | LOAD_OPTIONS, unused=refused(LOAD))
    if "--validate" in argv:
        return usage(VALIDATE, VALIDATE_ABOUT, ChooseConfig, line=LINE, options=LISTS, unused=refused(VALIDATE))
    return usage("recommend", ABOUT, ChooseConfig, line=LINE, options=OPTIONS, unused=refused("recommend"))


def job(
    form: str, options: dict[str, str], engine: str | None, picture: Path | None, configs: list[ChooseConfig]
) -> None:
    """Rank the drafts of `configs`, print the table, and on request a picture and the settings of other engines.

    Of several contexts each is ranked, and then compared.
    """
    if len(by_context := of_contexts(configs)) > 1:
        if picture is not None or requested(options) or engine is not None:
            raise UserError("context: --picture, --for and engine= go with one context; give one")
        ranked = [api.rank(group) for group in by_context]
        for one in ranked if form == "table" else ():
            draw(one.record)
        compare_contexts(form, [one.record for one in ranked])
        print(f"records: {', '.join(str(one.file) for one in ranked)}", file=aside(form))
        return
    found = api.rank(configs, engine=engine)
    shown = settings_of_engines(found.record, options)
    document: dict[str, object] = {
        name: found.record[name] for name in ("target", "task", "temperature", "rows", "reasons", "verified")
    }
    document["disturbed_by"] = found.record.get("disturbed_by")
    document |= {"for": shown} if shown else {}
    print_rows(form, found.record["rows"], lambda: draw(found.record), document=document)
    if form == "table":
        print_settings(shown)
    print(f"record: {found.file}", file=aside(form))
    if found.record.get("interrupted"):
        raise KeyboardInterrupt(
            "interrupted: the ranking is of the rounds before that; the same command measures again"
        )
    if picture is not None:
        from specbench.report.figures.gammas import choosing

        draw_picture(picture, partial(choosing, found.record), form)


def of_contexts(configs: Sequence[ChooseConfig]) -> list[list[ChooseConfig]]:
    """`configs` in groups of one context."""
    return [[one for one in configs if one.context == context] for context in dict.fromkeys(c.context for c in configs)]


def compare_contexts(form: str, documents: Sequence[RecommendDocument | ValidateDocument]) -> None:
    """Print the candidates of several contexts, the best of each, and what is forecast of others."""
    from specbench.report.context_tables import draw_documents, rows_of_documents

    rows = rows_of_documents(documents)
    print_rows(form, rows, lambda: draw_documents(rows))


# `specbench recommend --validate`: estimated against measured, every draft and gamma, interleaved in one process.

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
    """Compare estimates with measurements and print the table; of several contexts one for each."""
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


# Other engines: `--for ENGINE` prints settings, from a new document or a saved one; `engine=transformers` times that
# engine instead of our loop.


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
    if "load_id" in document and "schedule" not in options:
        return settings_under_load(document, requested(options))
    schedule = parse_schedule(options["schedule"]) if "schedule" in options else ()
    return [settings_for(document, name, schedule) for name in requested(options)]


def of_saved(form: str, options: Mapping[str, str]) -> None:
    """Print what to set for a recommendation that was saved. Raises UserError where its file is none."""
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


# `specbench recommend --load`: goodput with and without speculation at each load, and the gamma for each.


LOAD_ABOUT = """
Simulate a server under load: requests arrive at random, wait for a place in our continuous batching, and decode with
each draft and gamma, and without. Costs of starts, joins and passes are timed in real batches; the simulation says
goodput (requests a second within what is promised), p50, p95 and p99 of both times, the best gamma at each load, and
the number of requests at a time from which no draft pays. Writes results/load/ID.json.
"""
GOODPUT = "highest goodput over the target's alone, simulated"
LOAD_OPTIONS = {
    "batch=1,2,4,8": "(default) batch sizes at which costs are timed; the largest is the server's",
    "verify=N": "serve N of the loads for real, without a draft and with the best, and print the simulation's errors",
    "--picture FILE": "draw goodput against load: .svg, .pdf or .png",
    "--for ENGINE[,ENGINE]": "print settings with gamma by batch size for another engine, where it has such a schedule",
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
    # More tokens a second at some number of rows are not more requests served in time.
    pays = {row["candidate"] for row in record["best"]}
    for row in record["rows"]:
        goodput[row["candidate"]] = max(goodput.get(row["candidate"], 0.0), row["goodput"])
    known = {one["candidate"]: one for one in record["alpha_rows"]}
    rows = []
    for name in sorted(pays & {*record["schedules"]}, key=lambda name: -goodput[name]):
        spans = [Span(one["first"], one["last"], one["gamma"]) for one in record["schedules"][name]]
        drafting = [span.gamma for span in spans if span.gamma]
        if drafting:
            rows.append({
                **known[name], "gamma": drafting[0], "schedule": spans,
                "estimated": {"value": goodput[name] / goodput["none"]},
            })  # fmt: skip
    return rows
