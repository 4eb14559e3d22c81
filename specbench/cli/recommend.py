"""`specbench recommend`: the drafts ranked by their estimated speedup, with the settings for other engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from specbench import api
from specbench.cli.dry_run import DRY_RUN
from specbench.cli.formats import aside, draw_picture, picture_file, print_rows, print_settings
from specbench.cli.measure_alpha import LINE, LISTS, only_needs
from specbench.cli.other_engines import (
    engines_to_check_in,
    in_engines,
    of_saved,
    print_checked,
    requested,
    settings_of_engines,
    without_engine,
)
from specbench.cli.overrides import read
from specbench.cli.recommend_load import LOAD_ABOUT, LOAD_OPTIONS, main_under_load
from specbench.cli.usage import usage
from specbench.cli.validate import VALIDATE_ABOUT, compare_contexts, of_contexts, validate
from specbench.compose.grid import launch_each
from specbench.config.server import STARTED
from specbench.config.verbs import LOAD, VALIDATE, ChooseConfig, LoadConfig, refused
from specbench.errors import UserError
from specbench.files import require_writable
from specbench.interop.serving.settings.engines import ENGINES
from specbench.report.ranking import draw

ABOUT = """
Rank drafts and gammas by their calibrated speedup, with a 95% interval: alpha is estimated on the target's own
completions (as in `specbench alpha`), the cost of a pass is timed in short passes of the real loop. Explains the
ranking, and what would have to change for the next candidate to win. Writes results/recommend/ID.json.
"""
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
    "for whole calls of generate(), and verify= runs them",
    "--for ENGINE[,ENGINE]": f"print the settings for another engine: {', '.join(ENGINES)}; with verify=N start the "
    f"engine ({', '.join(STARTED)}) and measure the N best there",
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
        ranked = []
        for group in by_context:
            ranked.append(api.rank(group))
            if ranked[-1].record.get("interrupted"):
                break
        for one in ranked if form == "table" else ():
            draw(one.record)
        compare_contexts(form, [one.record for one in ranked])
        print(f"records: {', '.join(str(one.file) for one in ranked)}", file=aside(form))
        if ranked[-1].record.get("interrupted"):
            raise KeyboardInterrupt("interrupted: the last context is not whole; the same command measures it again")
        return
    there = engines_to_check_in(options, configs[0].verify, engine, {one.draft.kind for one in configs})
    found = api.rank([replace(one, verify=0) for one in configs] if there else configs, engine=engine)
    shown = settings_of_engines(found.record, options)
    interrupted = found.record.get("interrupted")
    checked, failed = in_engines(there, found.record, configs) if not interrupted else ([], None)
    document: dict[str, object] = {
        name: found.record[name] for name in ("target", "task", "temperature", "rows", "reasons", "verified")
    }
    document["disturbed_by"] = found.record.get("disturbed_by")
    document |= {"for": shown} if shown else {}
    document |= {"checked": checked} if checked else {}
    print_rows(form, found.record["rows"], lambda: draw(found.record), document=document)
    if form == "table":
        print_settings(shown)
        print_checked(checked)
    print(f"record: {found.file}", file=aside(form))
    if interrupted:
        in_time = found.record["reasons"][-1].startswith("interrupted: ranked by")
        left = (
            "the ranking is of the rounds before that"
            if in_time
            else "the ranking is whole, but not checked by all runs"
        )
        raise KeyboardInterrupt(f"interrupted: {left}; the same command measures again")
    if picture is not None:
        from specbench.report.figures.gammas import choosing

        draw_picture(picture, partial(choosing, found.record), form)
    if failed is not None:  # after the ranking, which is not lost by it
        raise failed
