"""`specbench recommend`: which draft and which gamma, why, and a proof by real runs."""

from functools import partial
from pathlib import Path
from typing import Any

from specbench.cli import other_engine, validate
from specbench.cli.alpha import LINE, LISTS
from specbench.cli.formats import aside, print_rows
from specbench.cli.grid import launch_each, progress
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.config.verbs import UNUSED, ChooseConfig
from specbench.errors import UserError
from specbench.files import require_writable
from specbench.records.documents import RankedRow, RecommendDocument, Verified

ABOUT = """
Rank drafts and gammas by their estimated speedup, with a 95% interval: alpha is estimated on the target's own
completions (as in `specbench alpha`), the cost of a pass is timed in short passes of the real loop. Explains the
ranking, and what would have to change for the next candidate to win. Writes results/recommend/ID.json.
"""
OPTIONS = LISTS | {
    "'tree=[none,sequoia]'": "rank chains (none) and trees; 'tree.size=[8,16,32]', tree.depth= and tree.children= "
    "may be lists too",
    "batch=1,4,16": "a ranking for each batch size, and the batch size from which no draft pays",
    "--validate": "test the estimates instead: every draft and gamma decodes all prompts; "
    "specbench recommend --validate --help tells more",
    "--picture FILE": "draw the ranking: .svg, .pdf or .png",
    **other_engine.OPTIONS,
}
MOST_ROWS = 16


def main(argv: list[str]) -> int:
    """Run `specbench recommend` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    if "--help" in argv or "-h" in argv:
        own = usage("recommend", ABOUT, ChooseConfig, line=LINE, options=OPTIONS, unused=UNUSED["recommend"])
        print(validate.help_text() if "--validate" in argv else own)
        return 0
    command = read(argv, ChooseConfig, valued=("picture", "for", "from", "schedule", "engine"), alone=("validate",))
    command, engine = other_engine.without_engine(command)
    if "validate" in command.options:
        validate.validate(command, engine)
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
    with progress(configs) as screen:
        from specbench.choose.recommend import recommend  # torch is imported only from here on

        found = recommend(configs, screen, other_engine.making(engine))
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


def draw(record: RecommendDocument) -> None:
    """The ranking, the reasons, and the proof."""
    from rich.markup import escape
    from rich.table import Table

    from specbench.analysis.forecast.theorems import BY_POSITION, BY_RANK
    from specbench.cli.formats import terminal

    console = terminal()
    console.width = max(console.width, 130)
    console.print(
        f"[bold]{escape(record['target'])}[/bold] on {escape(record['task'])}, T={record['temperature']:g}, "
        f"{record['dtype']}, engine {record['engine']}; a target step takes {1000 * record['target_step_s']:.2f} ms",
        markup=True,
    )
    if (signs := record.get("disturbed_by")) is not None:
        console.print(
            f"DISTURBED: {signs}, so c, v and the ranking are unreliable (α is not); repeat it when nothing else runs"
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    batches = {row.get("batch", 1) for row in record["rows"]}
    shown = [
        row
        for batch in sorted(batches)
        for row in _of_batch(record["rows"], batch)[: MOST_ROWS // min(4, len(batches))]
    ]
    for title in (
        "",
        *(["batch"] if len(batches) > 1 else []),
        "draft",
        "γ",
        "α",
        "c",
        "v",
        "overhead",
        "tok/pass",
        "Eq. 1",
        "predicted",
        "estimated",
        "95%",
    ):
        table.add_column(title, justify="left" if title in ("", "draft") else "right")
    for row in shown:
        leads = row is _of_batch(record["rows"], row.get("batch", 1))[0]
        cost, estimated = row["cost"], row["estimated"]
        low, high = estimated["low"], estimated["high"]
        mark = {BY_POSITION: "*", BY_RANK: "†"}.get(row["prediction"], "")
        table.add_row(
            "→" if leads else "", *([str(row.get("batch", 1))] if len(batches) > 1 else []), row["candidate"],
            _drafted(row["gamma"], row.get("tree")),
            f"{row['alpha']['value']:.3f}",
            f"{cost['c']:.3f}", f"{cost['verify_cost']:.2f}", f"{cost['overhead']:.3f}",
            f"{row['tokens_per_pass']:.2f}", f"{row['tokens_per_pass_iid']:.2f}{mark}", f"{row['predicted']:.2f}{mark}",
            f"{estimated['value']:.2f}", "–" if low is None else f"{low:.2f}–{high:.2f}",
            style="bold" if leads else None,
        )  # fmt: skip
    console.print(table)
    if any(row["prediction"] == BY_POSITION for row in record["rows"][:MOST_ROWS]):
        console.print("* from the acceptance rate at each position, since it falls with the position")
    if any(row.get("tree") for row in record["rows"][:MOST_ROWS]):
        console.print(
            "† tree: γ is the number of levels (L), c the cost of a level, tokens are from the acceptance by rank "
            "(Sequoia, Prop. 3.4)"
        )
    for line in record["reasons"]:
        console.print(f"· {line}")
    if record["verified"]:
        console.print(_proof(record["verified"]))
    for one in record["verified"]:
        if one.get("disturbed_by"):
            console.print(f"{one['run_id']}: DISTURBED, so its speedup is unreliable: {one['disturbed_by']}")
        if one.get("unproved"):
            console.print(f"{one['run_id']}: its speedup is {one['unproved']}", markup=False)


def _of_batch(rows: list[RankedRow], batch: int) -> list[RankedRow]:
    return [row for row in rows if row.get("batch", 1) == batch]


def _drafted(gamma: int, tree: str | None) -> str:
    return f"{gamma} L" if tree else str(gamma)


def _off(one: Verified) -> str:
    if one.get("disturbed_by"):
        return "disturbed"
    return "–" if one["off"] is None else f"{100 * one['off']:+.1f}%"


def _evidence(one: Verified) -> str:
    """The run; for another engine, the share of completions equal to those without a draft."""
    if one["run_id"] is None:
        return f"{100 * one.get('alike', 0):.0f}% of completions as without a draft"
    return one["run_id"] + (" (existing record)" if one["reused"] else "")


def _proof(verified: list[Verified]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title="measured by real runs", title_justify="left")
    for title in ("draft", "γ", "batch", "estimated", "measured", "95%", "error", "run"):
        table.add_column(title, justify="left" if title in ("draft", "run") else "right")
    for one in verified:
        measured = one["measured"]
        table.add_row(
            one["candidate"], _drafted(one["gamma"], one.get("tree")), str(one.get("batch", 1)),
            f"{one['estimated']['value']:.2f}", "–" if measured is None else f"{measured:.2f}",
            "–" if one["measured_low"] is None else f"{one['measured_low']:.2f}–{one['measured_high']:.2f}",
            _off(one),
            _evidence(one),
        )  # fmt: skip
    return table
