"""`specbench tables`: the paper's tables with ours beside them, from the records on disk."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.formats import plain, print_rows
from specbench.cli.options import add_fewest_prompts, listed, options, to_stderr
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.report.table import Table

KNOWN = ("table", "markdown", "csv", "json", "latex")


def main(argv: list[str]) -> int:
    """Run `specbench tables` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    parser = options("tables", "The paper's tables with our numbers. No model is loaded.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="table1 ... table5, beyond, gap, levers, trees, strata (default all)"
    )
    parser.add_argument(
        "--format", default="table", help="table (markdown, the default), csv, json, latex; several with commas"
    )
    parser.add_argument("--output", metavar="FOLDER", help="write files there instead of printing")
    parser.add_argument(
        "--score",
        action="store_true",
        help="every number of the paper's tables, ours, and a verdict",
    )
    add_fewest_prompts(parser)
    arguments = parser.read(argv)
    from specbench.files import write_atomically
    from specbench.records.frame import Records
    from specbench.records.kept import drawing_folder
    from specbench.report.console import counted
    from specbench.report.score import cells, overview, score
    from specbench.report.table import ENDINGS, render
    from specbench.report.tables import TABLES, build

    forms = ["markdown" if form == "table" else form for form in listed(arguments.format, KNOWN, "--format")]
    records = Records(arguments.results, arguments.min_prompts)
    folder = arguments.output and drawing_folder(records, Path(arguments.output), to_stderr)
    if arguments.score and arguments.names:
        raise UserError(f"--score: is of all tables, not of {', '.join(arguments.names)} alone")
    if arguments.score:
        scored = cells(records)
        tables = [*([] if forms == ["json"] else [overview(scored)]), score(records, scored)]
    else:
        with counted(len(arguments.names) or len(TABLES), "tables") as step:
            tables = build(arguments.names, records, step)
    if forms == ["json"] and folder is None:  # one document, however many tables
        print_rows("json", (), print, document=[document(table) for table in tables])
        return 0
    for table in tables:
        for form in forms:
            text = json.dumps(document(table), indent=1, ensure_ascii=False) if form == "json" else render(table, form)
            if folder is None:
                print(text)
                continue
            file = folder / f"{table.name}.{ENDINGS.get(form, form)}"
            write_atomically(file, text, "--output FOLDER")
            print(file)
    return 0


def document(table: "Table") -> dict[str, object]:
    """A table as JSON has it: plain numbers and run ids."""
    rows: object = plain(table.values.to_dict("records"))
    return {"name": table.name, "title": table.title, "rows": rows, "notes": table.notes, **table.more}
