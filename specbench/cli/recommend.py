"""`specbench recommend`: which draft and which gamma, why, and a proof by real runs."""

from functools import partial
from pathlib import Path

from specbench import api
from specbench.cli import other_engine
from specbench.cli.alpha import LINE, LISTS
from specbench.cli.formats import aside, print_rows
from specbench.cli.overrides import CommandLine, read
from specbench.cli.usage import usage
from specbench.compose.grid import launch_each
from specbench.config.verbs import UNUSED, VALIDATE, ChooseConfig
from specbench.errors import UserError
from specbench.files import require_writable, write_atomically
from specbench.records.documents import RecommendDocument
from specbench.report.prediction_error import markdown
from specbench.report.ranking import draw

ABOUT = """
Rank drafts and gammas by their estimated speedup, with a 95% interval: alpha is estimated on the target's own
completions (as in `specbench alpha`), the cost of a pass is timed in short passes of the real loop. Explains the
ranking, and what would have to change for the next candidate to win. Writes results/recommend/ID.json.
"""
OPTIONS = LISTS | {
    "tree=none,sequoia": "rank chains (none) and trees; tree.size=8,16,32, tree.depth= and tree.children= "
    "may be lists too",
    "batch=1,4,16": "a ranking for each batch size, and the batch size from which no draft pays",
    "--validate": "test the estimates instead: every draft and gamma decodes all prompts; "
    "specbench recommend --validate --help tells more",
    "--picture FILE": "draw the ranking: .svg, .pdf or .png",
    **other_engine.OPTIONS,
}


def main(argv: list[str]) -> int:
    """Run `specbench recommend` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    if "--help" in argv or "-h" in argv:
        own = usage("recommend", ABOUT, ChooseConfig, line=LINE, options=OPTIONS, unused=UNUSED["recommend"])
        print(validate_help() if "--validate" in argv else own)
        return 0
    command = read(argv, ChooseConfig, valued=("picture", "for", "from", "schedule", "engine"), alone=("validate",))
    command, engine = other_engine.without_engine(command)
    if "validate" in command.options:
        validate(command, engine)
        return 0
    if other_engine.requested(command.options) and "from" in command.options:
        if command.argv:
            raise UserError(f"{command.argv[0]}: --from takes all of the recommendation from its file")
        other_engine.of_saved(command.form, command.options)
        return 0
    picture = Path(command.options["picture"]) if "picture" in command.options else None
    if picture is not None:
        if picture.suffix not in (".svg", ".pdf", ".png"):
            raise UserError(f"--picture {picture}: must end in .svg, .pdf, .png")
        require_writable(picture.parent, "--picture FILE")
    argv = [f"batches={_listed(one[6:])}" if one.startswith("batch=") else one for one in command.argv]
    launch_each(partial(job, command.form, command.options, engine, picture), "choose", ChooseConfig, argv, "recommend")
    return 0


def _listed(values: str) -> str:
    """'1,4,16' as a list."""
    return values if values.startswith("[") else f"[{values}]"


def job(
    form: str, options: dict[str, str], engine: str | None, picture: Path | None, configs: list[ChooseConfig]
) -> None:
    """Rank the drafts of `configs`, print the table, and on request a picture and the settings of other engines."""
    found = api.rank(configs, engine=engine)
    shown = other_engine.settings_of_engines(found.record, options)
    document: dict[str, object] = {
        name: found.record[name] for name in ("target", "task", "temperature", "rows", "reasons", "verified")
    }
    document["disturbed_by"] = found.record.get("disturbed_by")
    document |= {"for": shown} if shown else {}
    print_rows(form, found.record["rows"], lambda: draw(found.record), document=document)
    if form == "table":
        other_engine.draw(shown)
    print(f"record: {found.file}", file=aside(form))
    if picture is not None:
        for written in _picture(found.record, picture):
            print(written, file=aside(form))


def _picture(record: RecommendDocument, file: Path) -> list[Path]:
    from specbench.report.figure import save
    from specbench.report.figures.choosing import choosing
    from specbench.report.style import styled

    with styled():
        drawn = choosing(record, file.stem)
    return save(drawn, file.parent, [file.suffix.removeprefix(".")], "--picture FILE")


# `specbench recommend --validate`: estimated against measured, every draft and gamma, interleaved in one process.


VALIDATE_ABOUT = """
Test the estimates of `specbench recommend`: every draft and gamma is timed in short passes, as for a recommendation,
and then decodes all prompts, interleaved in one process. Prints the error of the estimated speedup with 95% intervals,
how gamma=auto and gamma=adaptive compare with the best fixed gamma on the same prompts, and the time to estimate alpha
by scoring and by decoding. Writes results/validate/TARGET-TASK-T.json and .md. Run it on a quiet machine.
"""
RAW = ("rounds", "decoded", "configs", "environment", "alpha_rows")  # only in the record's file


def validate_help() -> str:
    """What `specbench recommend --validate --help` prints."""
    return usage(VALIDATE, VALIDATE_ABOUT, ChooseConfig, line=LINE, options=LISTS, unused=UNUSED[VALIDATE])


def validate(command: CommandLine, engine: str | None) -> None:
    """Compare the estimates of `specbench recommend` with measurements; `engine`: another engine that was named.

    Raises:
        UserError: an option of a ranking, or a value out of range.
    """
    if engine is not None:
        raise UserError(f"engine={engine}: --validate measures our own loop; recommend verify=N times this engine")
    if other := command.options.keys() - {"format", "validate", "engine"}:
        raise UserError(f"--{min(other)}: belongs to a ranking and not to --validate; give one of them")
    launch_each(partial(validation, command.form), "choose", ChooseConfig, command.argv, VALIDATE)


def validation(form: str, configs: list[ChooseConfig]) -> None:
    """Compare estimates with measurements and print the table."""
    file, record = api.validate(configs)
    text = markdown(record)
    shown = write_atomically(file.with_suffix(".md"), text)
    document = {name: value for name, value in record.items() if name not in RAW}
    print_rows(form, record["rows"], lambda: print(text), document=document)
    print(f"written: {file}, {shown}", file=aside(form))
