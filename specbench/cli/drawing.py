"""`specbench tables`, `figures` and `report`: the paper's tables and figures with ours, from the records on disk."""

from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.formats import as_json, print_rows
from specbench.cli.options import add_fewest_prompts, listed, options, to_stderr
from specbench.errors import UserError
from specbench.nouns import with_noun

if TYPE_CHECKING:
    from specbench.report.table import Table


KNOWN = ("table", "markdown", "csv", "json", "latex")


def tables(argv: list[str]) -> int:
    """Run `specbench tables` with the words `argv`."""
    parser = options("tables", "The paper's tables with our numbers. No model is loaded.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="runs (yours, whatever they are of), servers (of other engines), table1 ... table5, beyond, gap, levers, "
        "trees, strata (default all; only runs and servers in a folder with records of yours only)",
    )
    parser.add_argument(
        "--format", default="table", help="table (markdown, the default), csv, json, latex; several with commas"
    )
    parser.add_argument("--output", metavar="FOLDER", help="write files there instead of printing")
    parser.add_argument(
        "--all", action="store_true", help="every row; by default a text has 20 beside the paper's, CSV all"
    )
    parser.add_argument("--score", action="store_true", help="every number of the paper's tables, ours, and a verdict")
    add_fewest_prompts(parser)
    arguments = parser.read(argv)
    from specbench.files import write_atomically
    from specbench.records.frame import Records
    from specbench.records.keeping import drawing_folder
    from specbench.report.console import counted
    from specbench.report.score import cells, overview, score
    from specbench.report.table import ENDINGS, render
    from specbench.report.tables import TABLES, build, usual
    from specbench.report.tables.shorter import MOST_OTHERS

    forms = ["markdown" if form == "table" else form for form in listed(arguments.format, KNOWN, "--format")]
    records = Records(arguments.results, arguments.min_prompts)
    folder = arguments.output and drawing_folder(records, Path(arguments.output), to_stderr)
    if arguments.score and arguments.names:
        raise UserError(f"--score: is of all tables, not only of {', '.join(arguments.names)}")
    if arguments.score:
        scored = cells(records)
        shown = [*([] if forms == ["json"] else [overview(scored)]), score(records, scored)]
    else:
        with counted(len(arguments.names or usual(records)), "tables") as step:
            most = None if arguments.all or "json" in forms else MOST_OTHERS
            shown = build(arguments.names, records, step, most)
        if not arguments.names and {table.name for table in shown} <= {"runs", "servers"}:
            to_stderr(f"the paper's tables with these runs in them: specbench tables {' '.join(TABLES)}")
    if forms == ["json"] and folder is None:  # one document, however many tables
        print_rows("json", (), print, document=[document(table) for table in shown])
        return 0
    for table in shown:
        for form in forms:
            text = as_json(document(table)) if form == "json" else render(table, form)
            if folder is None:
                print(text)
                continue
            file = folder / f"{table.name}.{ENDINGS.get(form, form)}"
            write_atomically(file, text, "--output FOLDER")
            print(file)
    return 0


def document(table: "Table") -> dict[str, object]:
    """A table as JSON has it: numbers and run ids."""
    rows = table.values.to_dict("records")
    return {"name": table.name, "title": table.title, "rows": rows, "notes": table.notes, **table.more}


def figures(argv: list[str]) -> int:
    """Run `specbench figures` with the words `argv`."""
    parser = options("figures", "The paper's figures with our measured points. No model is loaded.")
    known = (
        "figure1 ... figure5, predictions, gamma, position, beta, cost, beyond, real, lossy, trees, verify, waterfall, "
        "gap, batches, online"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{known} (default all)")
    parser.add_argument("--format", default="svg,png", help="svg, pdf, png; several with commas (default svg,png)")
    parser.add_argument("--output", metavar="FOLDER", help="default figures/ in the results folder")
    add_fewest_prompts(parser)
    arguments = parser.read(argv)
    from specbench.records.frame import Records
    from specbench.records.keeping import drawing_folder
    from specbench.report.console import counted
    from specbench.report.figure import FORMATS, save, write_index
    from specbench.report.figures import FIGURES, build

    forms = listed(arguments.format, FORMATS, "--format")
    records = Records(arguments.results, arguments.min_prompts)
    names = arguments.names or list(FIGURES)
    with counted(2 * len(names) if len(names) > 1 else 0, "figures, drawn and written") as step:
        drawings = build(names, records, step)
        folder = drawing_folder(records, Path(arguments.output or records.results / "figures"), to_stderr)
        for drawn in drawings:
            step()
            for file in save(drawn, folder, forms):
                print(file)
    if not arguments.names:
        print(write_index(drawings, folder, forms))
    return 0


def report(argv: list[str]) -> int:
    """Run `specbench report` with the words `argv`."""
    parser = options(
        "report",
        "All tables and figures as one self-contained HTML page, and beside it FILE-explorer.html, where you change a "
        "record's numbers and see what they do to the speedup. No model is loaded.",
    )
    parser.add_argument("--output", metavar="FILE", help="default report.html in the results folder")
    parser.add_argument("--keep", action="store_true", help="also copy the records, compressed, to the folder's kept/")
    parser.add_argument(
        "--dirty", action="store_true", help="with --keep: also records of code with uncommitted changes"
    )
    add_fewest_prompts(parser)
    arguments = parser.read(argv)
    if arguments.dirty and not arguments.keep:
        raise UserError("--dirty: goes with --keep, which copies records")
    if arguments.output is None and not Path(arguments.results).is_dir():
        raise UserError(f"--results {arguments.results}: there is no such folder; 'specbench run' makes records in one")
    from specbench.records.catalog import kept_folder
    from specbench.records.frame import Records
    from specbench.report import explorer
    from specbench.report.console import counted
    from specbench.report.page import STEPS, write

    records = Records(arguments.results, arguments.min_prompts)
    if arguments.keep:
        from specbench.analysis.summary import resummarised
        from specbench.records.keeping import keep
        from specbench.report.marked_passes import typical_prompt

        copies = keep(records, to_stderr, resummarised, arguments.dirty, typical_prompt)
        records = Records(arguments.results, arguments.min_prompts)  # with the numbers of the copies
        print(f"{with_noun(len(copies), 'record')} in {kept_folder(arguments.results)}")
    file = Path(arguments.output or Path(arguments.results) / "report.html")
    beside = file.with_name(f"{file.stem}-explorer.html")
    with counted(STEPS, "tables and figures") as step:
        write(records, file, step)
    explorer.write(records, beside)
    print(file)
    print(beside)
    return 0
