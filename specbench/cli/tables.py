"""`specbench tables`: the paper's tables with ours beside them, from the records on disk."""

from pathlib import Path

from specbench.cli.options import add_fewest_prompts, dashed, listed, options, to_stderr


def main(argv: list[str]) -> int:
    parser = options("tables", "The paper's tables with ours beside them. No model is loaded.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="table1 ... table5, beyond (default all)")
    parser.add_argument("--format", default="markdown", help="markdown, latex, csv; several with commas")
    parser.add_argument("--output", metavar="FOLDER", help="write files there instead of printing")
    add_fewest_prompts(parser)
    arguments = parser.parse_args(dashed(argv))
    from specbench.files import write_atomically
    from specbench.records.frame import Records
    from specbench.records.kept import drawing_folder
    from specbench.report.table import ENDINGS, FORMATS, render
    from specbench.report.tables import build

    forms = listed(arguments.format, list(FORMATS), "--format")
    records = Records(arguments.results, arguments.min_prompts)
    folder = arguments.output and drawing_folder(records, Path(arguments.output), to_stderr)
    for table in build(arguments.names, records):
        for form in forms:
            text = render(table, form)
            if folder is None:
                print(text)
                continue
            file = folder / f"{table.name}.{ENDINGS[form]}"
            write_atomically(file, text, "--output")
            print(file)
    return 0
