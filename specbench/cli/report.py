"""`specbench report`: all tables and figures as one HTML page that needs no network."""

from pathlib import Path

from specbench.cli.options import add_fewest_prompts, options, to_stderr
from specbench.errors import UserError


def main(argv: list[str]) -> int:
    """Run `specbench report` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    parser = options("report", "All tables and figures as one self-contained HTML page. No model is loaded.")
    parser.add_argument("--output", metavar="FILE", help="default report.html in the results folder")
    parser.add_argument("--keep", action="store_true", help="also copy the records, compressed, to the folder's kept/")
    add_fewest_prompts(parser)
    arguments = parser.read(argv)
    if arguments.output is None and not Path(arguments.results).is_dir():
        raise UserError(f"--results {arguments.results}: there is no such folder; 'specbench run' makes records in one")
    from specbench.records.catalog import kept_folder
    from specbench.records.frame import Records
    from specbench.report.console import counted
    from specbench.report.page import STEPS, write

    records = Records(arguments.results, arguments.min_prompts)
    if arguments.keep:
        from specbench.analysis.resummary import resummarised
        from specbench.records.kept import keep

        copies = keep(records, to_stderr, resummarised)
        records = Records(arguments.results, arguments.min_prompts)  # with the numbers of the copies
        print(f"{len(copies)} records in {kept_folder(arguments.results)}")
    file = Path(arguments.output or Path(arguments.results) / "report.html")
    with counted(STEPS, "tables and figures") as step:
        write(records, file, step)
    print(file)
    return 0
